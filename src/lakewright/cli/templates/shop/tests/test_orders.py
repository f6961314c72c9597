"""A step is an ordinary function, so a test calls it; and the whole project runs in a temporary folder."""

import shutil
from pathlib import Path

from pipelines.orders import clean_orders

PROJECT = Path(__file__).parent.parent


def test_countries_are_written_in_capitals(spark):
    raw = spark.createDataFrame([("o-1", "de"), ("o-2", None)], "order_id string, country string")
    assert [row.country for row in clean_orders(raw).orderBy("order_id").collect()] == ["DE", None]


def test_every_sample_order_is_accounted_for(project, tmp_path):
    shutil.copytree(PROJECT, tmp_path / "copy", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    copy = project(folder="copy")

    assert copy.run(at="2026-01-08").state == "ok"

    # 12 lines: 1 unreadable, 2 broke a rule, 1 duplicate.
    assert copy.sql("SELECT count(*) FROM clean_orders").first()[0] == 8
    assert copy.sql("SELECT count(*) FROM dead_letters").first()[0] == 3
    revenue = copy.sql("SELECT sum(revenue) FROM daily_revenue WHERE day = '2026-01-05'").first()[0]
    assert float(revenue) == 169.40
