"""Which classes a client has, where that is not left to chance."""

from bouquet.data.federated import DataConfig


def classes_of(config: DataConfig, kinds: int) -> list[list[int]]:
    """The classes of each client, by the rule that ``data.class-choice`` names.

    ``consecutive`` gives client k the classes k, k+1, ... in a circle, as the published code of
    FedU does. ``spread`` is what the published code of APFL does: examples in the order of their
    classes are cut into as many equal runs as a client has classes, and each run is shared out
    among the clients in their order; of ten classes the first clients have 0 and 5, the last ones
    4 and 9.

    Parameters
    ----------
    config : DataConfig
        How many clients there are and how many classes each has.
    kinds : int
        How many classes there are.
    """
    clients, each = config.clients, config.classes_per_client
    if config.class_choice == "consecutive":
        return [[(client + turn) % kinds for turn in range(each)] for client in range(clients)]
    return [
        [(client + turn * clients) * kinds // (each * clients) for turn in range(each)]
        for client in range(clients)
    ]
