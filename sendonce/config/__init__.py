"""`sendonce.yaml`: reading it, checking it, and putting its lanes, limits and senders into the store."""

from sendonce.config.faults import ConfigFault
from sendonce.config.limits import LimitSetting
from sendonce.config.model import (
    DEFAULT_STORE,
    LANE_NAMES,
    Config,
    Lane,
    OutboxSettings,
    SenderSettings,
    SendGridSettings,
    Unsubscribe,
)
from sendonce.config.reading import DEFAULT_FILE, config_path, load_config
from sendonce.config.stored import ConfigChange, apply_config, config_changes, lanes_in, senders_in

__all__ = [
    "DEFAULT_FILE",
    "DEFAULT_STORE",
    "LANE_NAMES",
    "Config",
    "ConfigChange",
    "ConfigFault",
    "Lane",
    "LimitSetting",
    "OutboxSettings",
    "SendGridSettings",
    "SenderSettings",
    "Unsubscribe",
    "apply_config",
    "config_changes",
    "config_path",
    "lanes_in",
    "load_config",
    "senders_in",
]
