"""Tests of the modular interface."""
