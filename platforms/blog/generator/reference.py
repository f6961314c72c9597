"""The blog's small world: pages, devices, countries, browsers, and the two reference files made of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BROWSERS",
    "COUNTRIES",
    "COUNTRY_BY_BYTE",
    "DEVICES",
    "NETWORKS",
    "PAGES",
    "PAGE_BY_BYTE",
    "REFERRALS",
    "UNKNOWN_COUNTRY",
    "Device",
    "Page",
    "write_reference",
]


class Page(NamedTuple):
    page: str
    title: str
    category: str
    author: str


class Device(NamedTuple):
    device_id: str
    type: str
    full_name: str
    version: str


AUTHORS = ("Ada Novak", "Bruno Sá", "Chloé Martin", "Deniz Kaya")
TOPICS = {
    "ingestion": ("full loads", "change data capture", "compaction", "file readiness", "external triggers"),
    "quality": ("audits", "schema drift", "dead letters", "duplicates", "late data"),
    "storage": ("partitioning", "bucketing", "sorting", "statistics", "manifests"),
    "security": ("erasure", "column masks", "row filters", "secrets", "encryption"),
    "streaming": ("watermarks", "sessions", "state stores", "joins", "triggers"),
    "observability": ("lag", "skew", "lineage", "freshness", "alerts"),
}
PAGES = (
    Page("/", "Home", "site", AUTHORS[0]),
    Page("/about", "About us", "site", AUTHORS[0]),
    Page("/contact", 'Say "hello", we answer', "site", AUTHORS[1]),
    Page("/search", "Search", "site", AUTHORS[1]),
    *(Page(f"/categories/{name}", f"All about {name}", name, AUTHORS[0]) for name in TOPICS),
    *(
        Page(
            f"/posts/{category}-{topic.replace(' ', '-')}",
            f"{topic.capitalize()}, explained",
            category,
            AUTHORS[(row + column) % len(AUTHORS)],
        )
        for row, (category, topics) in enumerate(TOPICS.items())
        for column, topic in enumerate(topics)
    ),
)

DEVICES = tuple(
    Device(f"{type_}_{version.lower().replace(' ', '_').replace('.', '_')}", type_, full_name, version)
    for type_, full_name, versions in (
        ("iphone", "Apple iPhone", ("iOS 17.6", "iOS 18.2", "iOS 26.0")),
        ("ipad", "Apple iPad", ("iPadOS 18.2", "iPadOS 26.0")),
        ("galaxy", "Samsung Galaxy", ("Android 14", "Android 15", "Android 16")),
        ("pixel", "Google Pixel", ("Android 15", "Android 16")),
        ("mac", "Apple MacBook", ("macOS 15.2", "macOS 26.0")),
        ("thinkpad", "Lenovo ThinkPad", ("Windows 11", "Ubuntu 24.04")),
        ("desktop", "Desktop computer", ("Windows 10", "Windows 11")),
    )
    for version in versions
)

COUNTRIES = ("US", "FR", "DE", "IN", "BR", "GB", "PL", "JP", "ES", "CZ", "NG", "CA")
UNKNOWN_COUNTRY = len(COUNTRIES)  # the place after the last one: nobody knows the visitor
BROWSERS = (("Chrome", "131.0"), ("Chrome", "133.0"), ("Firefox", "134.0"), ("Safari", "18.2"))
NETWORKS = ("Wi-Fi", "5G", "4G", "LAN")
REFERRALS = ("null", "null", "null", '"https://search.example"', '"https://news.example"', '"newsletter"')


def _table_by_byte(choices: int) -> bytes:
    """256 places of which earlier choices have more: one random byte makes a weighted pick."""
    weights = [1 / (place + 2) for place in range(choices)]
    scale = (256 - choices) / sum(weights)
    counts = [1 + int(weight * scale) for weight in weights]
    counts[0] += 256 - sum(counts)
    return bytes(place for place, count in enumerate(counts) for _ in range(count))


PAGE_BY_BYTE = _table_by_byte(len(PAGES))
COUNTRY_BY_BYTE = _table_by_byte(len(COUNTRIES))


def write_reference(folder: Path) -> None:
    """Write ``pages/pages.csv`` and ``devices/devices.csv``."""
    _write_csv(folder / "pages" / "pages.csv", Page._fields, PAGES)
    _write_csv(folder / "devices" / "devices.csv", Device._fields, DEVICES)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
