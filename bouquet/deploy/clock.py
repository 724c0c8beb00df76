"""Whether a SuperLink refuses a node for its clock; it says so to nobody who does not ask."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from bouquet.core.errors import BadInput
from bouquet.flower.private import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    public_key_to_bytes,
    sign_message,
)

# What a SuperLink answers to a time it does not take for now.
REFUSAL = "Invalid timestamp"
# Any request will do: it is refused for its time before anything else is looked at.
REQUEST = "/flwr.proto.Fleet/PullMessages"
# Of a clock that is ahead, a SuperLink takes what it said this long ago; it takes five minutes.
EARLIER = timedelta(seconds=150)


def check_clock(superlink: str, ca: Path, key: Path, patience: float = 5.0) -> None:
    """Refuse to start a node whose clock is wrong; without an answer, all is well so far.

    Parameters
    ----------
    superlink : str
        Its address for nodes.
    ca, key : Path
        The authority to trust, and the node's private key.
    patience : float
        Seconds to wait for an answer.
    """
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    with grpc.secure_channel(superlink, credentials) as channel:
        now = datetime.now(UTC)
        if not _is_refused(channel, key, now, patience):
            return
        ahead = not _is_refused(channel, key, now - EARLIER, patience)
        how = "ahead of" if ahead else "minutes away from"
        raise BadInput(
            f"The clock of this device, {now:%Y-%m-%d %H:%M:%S} UTC, is {how} the SuperLink's, "
            "which refuses a node that is 5 seconds ahead or 5 minutes behind; set it."
        )


def _is_refused(channel: Any, key: Path, moment: datetime, patience: float) -> bool:
    secret: Any = load_ssh_private_key(key.read_bytes(), None)
    words = moment.isoformat()
    metadata = [
        (PUBLIC_KEY_HEADER, public_key_to_bytes(secret.public_key())),
        (TIMESTAMP_HEADER, words),
        (SIGNATURE_HEADER, sign_message(secret, words.encode("ascii"))),
    ]
    try:
        channel.unary_unary(REQUEST)(b"", timeout=patience, metadata=metadata)
    except grpc.RpcError as error:
        return REFUSAL in str(error.details())
    return False
