package io.sluice.client;

import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles region buffers between the tasks of an executor: fresh direct memory of megabytes is
 * dear. Those that a TaskManager of this host shares come first.
 */
public final class RegionPool {
    private final int regionBytes;
    private final ArrayBlockingQueue<ByteBuffer> idle;
    private final RegionAreas areas;

    /** The slots that tasks have, each with its area, which may be the current one no more. */
    private final Map<ByteBuffer, RegionArea> slots =
            Collections.synchronizedMap(new IdentityHashMap<>());

    /**
     * @param regionBytes size of each buffer
     * @param maxIdle how many unused ones are kept, beside shared ones
     * @param sharedRegions how many a TaskManager is asked to share; 0 for none
     */
    public RegionPool(int regionBytes, int maxIdle, int sharedRegions) {
        this.regionBytes = regionBytes;
        this.idle = new ArrayBlockingQueue<>(maxIdle);
        this.areas = new RegionAreas(regionBytes, sharedRegions);
    }

    /** A direct buffer: the socket takes it as it is, without a copy. */
    ByteBuffer take() {
        RegionArea area = areas.current();
        ByteBuffer region = area == null ? null : area.take();
        if (region != null) {
            slots.put(region, area);
            return region;
        }
        region = idle.poll();
        return region != null ? region : ByteBuffer.allocateDirect(regionBytes);
    }

    void recycle(ByteBuffer region) {
        RegionArea area = slots.remove(region);
        if (area != null) {
            // To an area that was dropped nobody looks any more.
            area.recycle(region);
        } else {
            idle.offer(region);
        }
    }

    int regionBytes() {
        return regionBytes;
    }

    RegionAreas areas() {
        return areas;
    }

    public int idleRegions() {
        return idle.size();
    }
}
