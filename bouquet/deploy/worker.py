"""What a device's process does with a message: it answers with the code that is installed here.

Flower would unpack the bundle that a SuperLink sends and import it. Then whoever can start a run
could run any code on every device. Here nothing of a bundle is unpacked or imported: it is only
looked at, and refused where its files are not those of the installed app.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bouquet.core.errors import BadInput
from bouquet.deploy.bundle import fingerprint

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

# Not before the fork: the partitioners, which devices with data of their own never need.
# torch._dynamo: what recording a step imports, for a second of every message.
LIBRARIES = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.clientapp",
    "torch",
    "torch._dynamo",
    "safetensors.torch",
    "bouquet.client_app.main",
)


def work(words: Sequence[str], known: Sequence[str]) -> None:
    """Do what one message asks, as ``flwr-clientapp`` does, but with the installed app.

    Parameters
    ----------
    words : sequence of str
        Of the command ``flwr-clientapp``.
    known : sequence of str
        Fingerprints of the bundles that the owner lets the server use; the first is of the
        installed app.
    """
    from bouquet.flower.private import answer_with, flwr_clientapp

    def look_at(bundle: bytes) -> None:
        refuse_other(bundle, known)

    answer_with(look_at, installed)
    sys.argv = ["flwr-clientapp", *words]
    flwr_clientapp()


def refuse_other(bundle: bytes, known: Sequence[str]) -> None:
    """Refuse a bundle whose files are not the installed app's, nor one's that its owner lists."""
    found = fingerprint(bundle)
    if found not in known:
        raise BadInput(
            f"The server's app ({found[:16]}) is not the one installed on this device "
            f"({known[0][:16]}): a device runs its own code only. Install the same version of "
            f'Bouquet on both, or let the owner list bundles = ["{found}"] in the device\'s policy.'
        )


def installed() -> "ClientApp":
    """The app that answers: the one its owner installed."""
    from bouquet.client_app.main import app

    return app
