package io.sluice.client.output;

import io.sluice.client.connection.RegionArea;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * Recycles region buffers between the tasks of an executor, because fresh direct memory of
 * megabytes is expensive. Buffers shared with a TaskManager of this host are used first.
 */
public final class RegionPool {
    private final int regionBytes;
    private final ArrayBlockingQueue<ByteBuffer> idle;
    private final RegionAreas areas;

    /** The slots that tasks hold, each with its area, which may have been replaced meanwhile. */
    private final Map<ByteBuffer, RegionArea> slots =
            Collections.synchronizedMap(new IdentityHashMap<>());

    /**
     * @param regionBytes size of each buffer
     * @param maxIdle number of unused buffers to keep, in addition to shared ones
     * @param sharedRegions number of buffers that a TaskManager is asked to share; 0 for none
     */
    public RegionPool(int regionBytes, int maxIdle, int sharedRegions) {
        this.regionBytes = regionBytes;
        this.idle = new ArrayBlockingQueue<>(maxIdle);
        this.areas = new RegionAreas(regionBytes, sharedRegions);
    }

    /** Takes a direct buffer, which the socket writes without another copy. */
    public ByteBuffer take() {
        RegionArea area = areas.current();
        ByteBuffer region = area == null ? null : area.take();
        if (region != null) {
            slots.put(region, area);
            return region;
        }
        region = idle.poll();
        return region != null ? region : ByteBuffer.allocateDirect(regionBytes);
    }

    public void recycle(ByteBuffer region) {
        RegionArea area = slots.remove(region);
        if (area != null) {
            // If the area was replaced, nobody looks at it any more.
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
