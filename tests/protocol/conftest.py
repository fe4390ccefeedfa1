"""Settings of the protocol tests."""

from hypothesis import settings

# No deadline: how long an example takes says nothing on a machine that runs other tests too.
settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")
