"""Loopwright as users install it: the wheel, its extras, its types, the systems and the versions of
torch."""
