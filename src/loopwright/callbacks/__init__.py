"""Callbacks that ship; each imports what it needs only when it is used."""
