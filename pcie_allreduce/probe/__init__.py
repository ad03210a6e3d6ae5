"""The start-up probe: what goes over this machine's links is measured, and one verdict decides how ranks meet."""

from pcie_allreduce.probe.decision import Verdict
from pcie_allreduce.probe.measurements import Compared, Measurements, Traffic

__all__ = ["Compared", "Measurements", "Traffic", "Verdict"]
