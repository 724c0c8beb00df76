"""Write the catalogue as schemes, keys, models and data sets say it now.

``python -m bouquet.cli.gather`` is due whenever one of them changes; a test tells.
"""

import json

from bouquet.cli.catalogue import (
    FILE,
    Catalogue,
    ListedData,
    ListedModel,
    listed_key,
    listed_scheme,
)
from bouquet.data import DATASETS
from bouquet.models import MODELS
from bouquet.settings import all_keys
from bouquet.strategies.registry import SCHEMES


def gathered() -> Catalogue:
    """The catalogue as it should be."""
    return Catalogue(
        [listed_scheme(one) for one in SCHEMES.values()],
        [listed_key(one) for one in all_keys()],
        [ListedModel(one.name, one.doc) for one in MODELS.values()],
        [ListedData(one.name, one.doc, one.model, one.natural) for one in DATASETS.values()],
    )


def as_json(catalogue: Catalogue) -> str:
    """What the file holds: a line for each thing, so that a change is a line."""
    parts = []
    for name, things in catalogue._asdict().items():
        lines = [json.dumps(one._asdict(), ensure_ascii=False) for one in things]
        parts.append(f'"{name}": [\n' + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(as_json(gathered()), "utf-8")
