"""Tests of `loopwright check`."""
