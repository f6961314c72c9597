"""Devices: taken whole from PostgreSQL and copied for staging, whenever their owners tell of a release."""

from lakewright import ExternalTrigger, FullLoader, Jdbc, KafkaEvents, PassthroughReplicator, Pipeline

released = ExternalTrigger(on=KafkaEvents("broker", "releases"), types=["release"])
devices = Pipeline("devices", schedule=None, start="2026-01-01", triggers=[released])

devices.source(
    "devices",
    Jdbc("blog_db", table="devices"),
    load=FullLoader(max_loss=0.5),
    schema="device_id string, type string, full_name string, version string",
    description="The devices that visitors use",
)
devices.replicate("devices_for_staging", "devices", PassthroughReplicator(), to="exports/staging/devices")
