"""Questions with their documents: of a file in the SQuAD format (XQuAD's too), or a few that come with the tools."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("one document", "two relevant", "two among all", "summary")
"""A question on one document; on two, with these alone; on two, among others; a summary of these."""

_SUMMARY = "Summarize the documents in a few sentences."


class Asked(NamedTuple):
    """A question, and the document that answers it."""

    document: str
    question: str


class Case(NamedTuple):
    """What is asked in one request: documents in the order in which they stand."""

    kind: str
    documents: list[str]
    question: str


OWN = [
    Asked(
        "The Harbour Bridge of Varn was opened in 1932 after nine years of work. It carries two railway tracks, six "
        "lanes of road and a path for walkers, and it is painted once in five years. Its engineer, Ada Holm, had built "
        "smaller bridges on the islands before.",
        "Who was the engineer of the bridge?",
    ),
    Asked(
        "Lake Oru lies 412 metres above the sea. Its water is cold and clear, and it freezes over in most winters. The "
        "people of the two villages on its shore fish for char in spring and sell ice to the towns in the valley.",
        "How high above the sea does the lake lie?",
    ),
    Asked(
        "The printing house of Mertens moved to Halle in 1871 and bought three steam presses. Within four years it "
        "printed the town's newspaper, the timetables of the railway and most schoolbooks of the district. A fire in "
        "the paper store ended its work in 1904.",
        "What ended the work of the printing house?",
    ),
    Asked(
        "Wild garlic grows in the shade of beech woods and flowers in April. Its leaves taste of garlic and are picked "
        "before the flowers open. They are easily mistaken for those of lily of the valley, which are poisonous.",
        "Which poisonous plant has similar leaves?",
    ),
    Asked(
        "The first observatory of the university stood on the roof of the library. Its telescope had a lens of eleven "
        "centimetres and was given by a merchant whose son had studied there. It was sold when street lamps made the "
        "sky too bright.",
        "Where did the first observatory stand?",
    ),
    Asked(
        "Trams came to the city in 1899. The first line ran from the station to the mill and took eighteen minutes; "
        "a ride cost five pence. Horses that had pulled the older cars were sold to farmers.",
        "How long did a ride on the first line take?",
    ),
]


def read_questions(path: Path | None) -> list[Asked]:
    """The questions of a file, the first of each paragraph; None: those that come with the tools.

    Raises:
        click.ClickException: The file is not in the SQuAD format.
    """
    if path is None:
        return OWN
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return [Asked(each["context"], each["qas"][0]["question"]) for each in paragraphs if each["qas"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise click.ClickException(f"{path} is not in the SQuAD format: {error!r}") from error


def cases_of(questions: list[Asked], count: int, documents: int, seed: int) -> list[Case]:
    """`count` cases of each kind, documents in random order in each; the last two kinds have `documents` of them."""
    chosen = random.Random(seed)  # noqa: S311 - an order, not a secret
    cases = []
    for _ in range(count):
        first, second, *others = chosen.sample(questions, documents)
        both = f"{first.question} And: {second.question}"
        relevant = [first.document, second.document]
        everything = relevant + [other.document for other in others]
        texts = ([first.document], relevant, everything, everything)
        asked = (first.question, both, both, _SUMMARY)
        for kind, own, question in zip(KINDS, texts, asked, strict=True):
            cases.append(Case(kind, chosen.sample(own, len(own)), question))
    return cases
