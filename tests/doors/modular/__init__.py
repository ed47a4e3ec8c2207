"""Tests of the modular door."""
