"""Orders of the shop: raw events in, daily revenue out."""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakewright import DeadLetter, JsonFiles, Pipeline, Repair, WindowedDeduplicator, load_contract

PROJECT = Path(__file__).parent.parent

orders = Pipeline("orders", schedule="@daily", start="2026-01-01")

# Each file that lands is taken once. Every line is kept in bronze, the unreadable ones too.
orders.source("raw_orders", JsonFiles("landing/orders"), contract=load_contract(PROJECT / "contracts/orders.yaml"))


@orders.dataset(
    layer="silver",
    event_time="ordered_at",
    late=Repair(within="7 days"),
    guards_in={
        "raw_orders": [
            DeadLetter(
                rules={"has_id": "order_id IS NOT NULL", "positive_amount": "amount > 0"},
                stop_above=0.5,
            ),
            WindowedDeduplicator(keys=["order_id"]),
        ]
    },
    rows="preserve",
)
def clean_orders(raw_orders: DataFrame) -> DataFrame:
    """Orders that can be trusted, each of them once."""
    return raw_orders.withColumn("country", F.upper("country"))


orders.sql(
    "daily_revenue",
    """
    SELECT to_date(ordered_at) AS day, country, count(*) AS orders, sum(amount) AS revenue
    FROM clean_orders
    GROUP BY ALL
    """,
    event_time="day",
    rows="reduce",
    description="Orders and revenue per day and country.",
)
