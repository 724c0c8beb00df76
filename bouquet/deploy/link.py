"""A SuperLink that carries more nodes: Flower's command, with its database used calmly."""


def main() -> None:
    """Run Flower's command."""
    from bouquet.flower.private import calm_database, flower_superlink

    calm_database()
    flower_superlink()
