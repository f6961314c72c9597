"""Services: PostgreSQL and Kafka for development and tests, started and found again by us, without root or Docker."""

from lakewright.runtime.services.contract import Address, ServiceStatus
from lakewright.runtime.services.lifecycle import NAMES, down, status, up

__all__ = ["NAMES", "Address", "ServiceStatus", "down", "status", "up"]
