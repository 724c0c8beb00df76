"""Real machines: certificates and keys, a SuperLink and its nodes."""
