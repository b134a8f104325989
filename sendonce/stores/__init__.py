"""The store: the one place where a fact about a campaign is kept."""
