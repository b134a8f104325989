"""Row coders for everything that travels between steps: readable by any SDK, stable over releases, never pickle."""

from apache_beam.coders import registry

from schemas.elements import DeadLetter, Reference, RenderedBatch, Tick, TriggerMessage

ELEMENTS = (DeadLetter, Reference, RenderedBatch, Tick, TriggerMessage)

for element in ELEMENTS:
    registry.register_row(element)
