"""`sendonce.yaml`: reading it, checking it, and putting its lanes, limits and senders into the store."""

from sendonce.config.adapters.account import SenderSettings
from sendonce.config.adapters.outbox import OutboxSettings
from sendonce.config.adapters.resend import ResendSettings
from sendonce.config.adapters.sendgrid import SendGridSettings
from sendonce.config.adapters.ses import SesSettings
from sendonce.config.adapters.smtp import SmtpSettings
from sendonce.config.adapters.webhook import WebhookSettings
from sendonce.config.faults import ConfigFault
from sendonce.config.limits import LimitSetting, WarmUp
from sendonce.config.model import (
    DEFAULT_STORE,
    LANE_NAMES,
    Config,
    DomainGroup,
    Lane,
    Unsubscribe,
)
from sendonce.config.reading import DEFAULT_FILE, config_path, load_config, read_lanes
from sendonce.config.stored import (
    ConfigChange,
    apply_config,
    check_environment,
    config_changes,
    domain_groups_in,
    lanes_in,
    senders_in,
    topic_in,
    topics_in,
)

__all__ = [
    "DEFAULT_FILE",
    "DEFAULT_STORE",
    "LANE_NAMES",
    "Config",
    "ConfigChange",
    "ConfigFault",
    "DomainGroup",
    "Lane",
    "LimitSetting",
    "OutboxSettings",
    "ResendSettings",
    "SendGridSettings",
    "SenderSettings",
    "SesSettings",
    "SmtpSettings",
    "Unsubscribe",
    "WarmUp",
    "WebhookSettings",
    "apply_config",
    "check_environment",
    "config_changes",
    "config_path",
    "domain_groups_in",
    "lanes_in",
    "load_config",
    "read_lanes",
    "senders_in",
    "topic_in",
    "topics_in",
]
