"""The error class of this package."""

from ..protocol.errors import ErrorCode, SluiceError


class SparkIntegrationError(SluiceError):
    """Spark cannot be set up for Sluice."""

    code = ErrorCode.CONFIGURATION
