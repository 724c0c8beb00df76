"""What a device's process does with a message: it answers with the code that is installed here.

Flower would unpack the bundle that a SuperLink sends and import it. Then whoever can start a run
could run any code on every device. Here nothing of a bundle is unpacked or imported: it is only
looked at, and refused where its files are not those of the installed app.
"""

import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from bouquet.core.errors import BadInput
from bouquet.deploy.bundle import fingerprint
from bouquet.storage.privacy import keep_to_owner

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from bouquet.client_app.policy import Policy

# How PyTorch words it.
NO_MEMORY = "can't allocate memory"
# Not before the fork: the partitioners, which devices with data of their own never need.
LIBRARIES = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.clientapp",
    "torch",
    "safetensors.torch",
    "bouquet.client_app.main",
)
# What training several clients together imports, and recording a step: for a second of a message,
# and for 70 MB. A device with one client and few local steps never does.
PERHAPS = ("torch._dynamo",)


def work(words: Sequence[str], known: str, policy: str) -> None:
    """Do what one message asks, as ``flwr-clientapp`` does, but with the installed app.

    Parameters
    ----------
    words : sequence of str
        Of the command ``flwr-clientapp``.
    known : str
        The fingerprint of the installed app's bundle.
    policy : str
        The owner's file, which may list those of others.
    """
    from bouquet.client_app.policy import listed, read_policy
    from bouquet.flower.private import answer_with, flwr_clientapp

    def look_at(bundle: bytes) -> None:
        refuse_other(bundle, [known, *listed(read_policy(policy).bundles)])

    keep_to_owner()
    answer_with(look_at, lambda: answer)
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


def answer(message: "Message", context: "Context") -> "Message":
    """The installed app's answer, within the bounds of the owner's policy."""
    from bouquet.client_app.device import device
    from bouquet.client_app.main import app

    own = device(context.node_config)
    with nullcontext() if own is None else bounds(own.policy):
        return app(message=message, context=context)


@contextmanager
def bounds(policy: "Policy") -> Iterator[None]:
    """Bound what this process, which is one message's, may take of the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_within(policy.most_memory, before[1]), before[1]))
    if policy.cpu_seconds:
        _bound_cpu(policy.cpu_seconds)
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or NO_MEMORY in str(error):
            raise BadInput(
                f"What is asked takes more than the {policy.most_memory // 10**6} MB that the "
                "policy of the device allows (memory)."
            ) from error
        raise
    finally:  # the reply must still be sent
        resource.setrlimit(resource.RLIMIT_DATA, before)
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)


def _bound_cpu(seconds: int) -> None:
    def spent(number: int, frame: object) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes again every second
        raise BadInput(
            f"What is asked takes more than the {seconds} CPU seconds that the policy of the "
            "device allows (cpu-seconds)."
        )

    signal.signal(signal.SIGXCPU, spent)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (_within(seconds, hard), _within(seconds + 60, hard)))


def _within(limit: int, hard: int) -> int:
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)
