"""The remote tier is left out while it does not answer, and comes back by itself."""

import pytest

from sluice.shuffle.taskmanager.store.errors import RemoteFailed, StorageFull
from tests.support.mini_cluster import eventually
from tests.support.remote import REMOTE_ONLY, open_store, s3_place, tier_of
from tests.support.s3 import s3_proxy
from tests.support.store import KEY, config, content, fetch, put


async def test_an_outage_leaves_it_out_until_it_is_over(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        settings = REMOTE_ONLY | place.settings | {"remote_endpoint": proxy.endpoint}
        store = open_store(
            config(tmp_path, **settings, remote_timeout_seconds=0.3, health_check_seconds=0.02)
        )
        tier = tier_of(store)
        proxy.rule = lambda method, path: 500
        store.watch(lambda lost: None)
        await eventually(lambda: not tier.healthy)
        with pytest.raises(StorageFull, match=r"status 500|no answer"):
            await put(store, 1, 100)
        proxy.rule = lambda method, path: None
        await eventually(lambda: tier.healthy)

        output = await put(store, 1, 100)
        proxy.rule = lambda method, path: 503
        with pytest.raises(RemoteFailed):
            await fetch(store, output)
        assert not tier.healthy
        store.release_shuffle(KEY)
        await eventually(lambda: tier.waiting_deletes and tier._deleting is None)
        proxy.rule = lambda method, path: None
        await eventually(lambda: tier.healthy)
        await eventually(lambda: not place.data())
        await store.close()


async def test_a_slow_store_is_waited_for(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        proxy.delay_seconds = 0.05
        settings = REMOTE_ONLY | place.settings | {"remote_endpoint": proxy.endpoint}
        store = open_store(config(tmp_path, **settings))
        outputs = [await put(store, each, 1000) for each in range(3)]
        for output in outputs:
            assert await fetch(store, output) == content(output.map_attempt_id, 1000)
        await store.close()


async def test_a_store_that_does_not_answer_is_given_up(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        settings = REMOTE_ONLY | place.settings | {"remote_endpoint": proxy.endpoint}
        store = open_store(config(tmp_path, **settings, remote_timeout_seconds=0.2))
        proxy.delay_seconds = 30
        with pytest.raises(RemoteFailed, match=r"no answer|connection failed"):
            await put(store, 1, 1000)
        await store.close()
