package io.sluice.client.output;

import io.sluice.client.connection.RegionArea;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Recycles region buffers between tasks. Uses buffers shared with a TaskManager first. Each data
 * process of a TaskManager has a region area of its own. Thread safe.
 */
public final class RegionPool {
    /** Maximum regions of a running map task: one being secured and one being filled. */
    public static final int REGIONS_PER_TASK = 2;

    private final int regionBytes;
    private final ArrayBlockingQueue<ByteBuffer> idle;
    private final int sharedRegions;
    private final Map<Integer, RegionAreas> areas = new ConcurrentHashMap<>();

    /** The slots in use, each with its area, which may have been replaced. */
    private final Map<ByteBuffer, RegionArea> slots =
            Collections.synchronizedMap(new IdentityHashMap<>());

    /**
     * @param regionBytes size of each buffer
     * @param maxIdle maximum number of idle buffers that are not shared
     * @param sharedRegions number of buffers to share with a TaskManager that has one data process;
     *     0 shares none
     */
    public RegionPool(int regionBytes, int maxIdle, int sharedRegions) {
        this.regionBytes = regionBytes;
        this.idle = new ArrayBlockingQueue<>(maxIdle);
        this.sharedRegions = sharedRegions;
    }

    /**
     * Takes a direct buffer.
     *
     * @param process the data process to share it with, if that has an area
     */
    public ByteBuffer take(int process) {
        RegionArea area = areas(process).current();
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

    /** Returns the requests for the area of a data process. */
    RegionAreas areas(int process) {
        return areas.computeIfAbsent(process, each -> new RegionAreas(regionBytes, sharedRegions));
    }

    public int idleRegions() {
        return idle.size();
    }
}
