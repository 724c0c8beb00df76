"""The app as Flower sends it to nodes."""

from bouquet.flower.private import build_fab_from_files
from bouquet.manifest import APP, BESIDE, PACKAGE, flower_app, manifest


def bundle() -> bytes:
    """The app as Flower sends it: the same bytes from a checkout and from an installed wheel.

    Flower's own collection looks at every file below, a virtual environment's too, for seconds.
    """
    files = {"pyproject.toml": manifest()}
    for pattern in flower_app()["fab-include"]:
        room, _, rest = pattern.partition("/")
        # A wheel has the folders that stand beside ours in a checkout inside it.
        inside = PACKAGE if room == PACKAGE.name else PACKAGE / room
        folder = inside if inside.exists() else APP / room
        for path in folder.glob(rest):
            name = path.relative_to(folder).as_posix()
            if room != PACKAGE.name or not name.startswith(BESIDE):
                files[f"{room}/{name}"] = path
    return build_fab_from_files(files)[0]
