package io.sluice.client.output;

import io.sluice.client.connection.RegionArea;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;

/** Recycles region buffers between tasks. Uses buffers shared with a TaskManager first. */
public final class RegionPool {
    private final int regionBytes;
    private final ArrayBlockingQueue<ByteBuffer> idle;
    private final RegionAreas areas;

    /** The slots in use, each with its area, which may have been replaced. */
    private final Map<ByteBuffer, RegionArea> slots =
            Collections.synchronizedMap(new IdentityHashMap<>());

    /**
     * @param regionBytes size of each buffer
     * @param maxIdle maximum number of idle buffers that are not shared
     * @param sharedRegions number of buffers to share with a TaskManager
     */
    public RegionPool(int regionBytes, int maxIdle, int sharedRegions) {
        this.regionBytes = regionBytes;
        this.idle = new ArrayBlockingQueue<>(maxIdle);
        this.areas = new RegionAreas(regionBytes, sharedRegions);
    }

    /** Takes a direct buffer. */
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
