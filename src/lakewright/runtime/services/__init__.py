"""Services: PostgreSQL, Kafka, Debezium and Spark for development and tests, found again, without root or Docker."""

from lakewright.runtime.services.contract import Address, ServiceStatus
from lakewright.runtime.services.lifecycle import NAMES, down, names_here, status, up

__all__ = ["NAMES", "Address", "ServiceStatus", "down", "names_here", "status", "up"]
