package io.sluice.client.output;

import io.sluice.client.connection.RegionArea;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Requests the region area that an executor shares with one data process, and attaches connections
 * to it. Thread safe. Without an area, tasks send their regions over the socket.
 *
 * <pre>
 *   NONE ──────── a task requests an area ────────▶ REQUESTED
 *   REQUESTED ─── the file is mapped ─────────────▶ MAPPED
 *   REQUESTED ─── the file cannot be mapped ──────▶ OFF, for good
 *   REQUESTED ─── the TaskManager refuses ────────▶ REFUSED ── 30 s, a request ──▶ REQUESTED
 *   REQUESTED ─── the connection is lost ─────────▶ NONE
 *   MAPPED ────── the TaskManager dropped it ─────▶ NONE
 * </pre>
 */
final class RegionAreas {
    private static final Logger LOG = LoggerFactory.getLogger(RegionAreas.class);

    /** How long to make no request after a refusal, whose cause (a limit, a setting) persists. */
    private static final long REFUSED_NANOS = TimeUnit.SECONDS.toNanos(30);

    private enum State {
        NONE,
        REQUESTED,
        MAPPED,
        REFUSED,
        OFF
    }

    private final int regionBytes;
    private final int regions;
    private State state;
    private long refusedAt;

    /** Set only in state MAPPED. */
    private volatile RegionArea current;

    /**
     * @param regionBytes size of a slot
     * @param regions number of slots to request from a TaskManager with one data process; 0 turns
     *     region areas off
     */
    RegionAreas(int regionBytes, int regions) {
        this.regionBytes = regionBytes;
        this.regions = regions;
        this.state = regions > 0 ? State.NONE : State.OFF;
    }

    /** Returns the area, or null. */
    RegionArea current() {
        return current;
    }

    /**
     * Attaches the connection of a leg to the area if possible.
     *
     * @param leg a leg to the data process of this area
     */
    void attach(ProducerLeg leg) throws IOException {
        TaskManagerConnection connection = leg.connection();
        if (!connection.endpoint().isUnix()) {
            return;
        }
        RegionArea area = current;
        if (area != null) {
            boolean attached = connection.regionArea() == area;
            // By endpoint: another TaskManager there needs an area of its own.
            boolean foreign = !area.endpoint().equals(connection.endpoint());
            if (attached || foreign || attach(leg, area)) {
                return;
            }
            drop(area);
        }
        if (beginRequest()) {
            request(leg);
        }
    }

    /** Attaches an area; returns whether the TaskManager still has it. */
    private static boolean attach(ProducerLeg leg, RegionArea area) throws IOException {
        boolean known = leg.attachArea(area.token(), 0).token().equals(area.token());
        leg.connection().setRegionArea(known ? area : null);
        return known;
    }

    /** Requests a new area and maps it. */
    private void request(ProducerLeg leg) throws IOException {
        TaskManagerConnection connection = leg.connection();
        State next = State.NONE;
        RegionArea area = null;
        try {
            long slots = slotsFor(connection.taskManager().processes());
            Message.RegionAreaAttached made = leg.attachArea("", slots * regionBytes);
            if (made.token().isEmpty()) {
                LOG.debug(
                        "The TaskManager at {} refuses to share a region area",
                        connection.endpoint());
                next = State.REFUSED;
                return;
            }
            try {
                area =
                        RegionArea.open(
                                made.token(),
                                connection.endpoint(),
                                made.path(),
                                made.sizeBytes(),
                                regionBytes);
                connection.setRegionArea(area);
                next = State.MAPPED;
            } catch (ClosedByInterruptException e) {
                // The task is being killed; the file may be usable.
                throw new ClientException.Interrupted("interrupted while a region area was mapped");
            } catch (IOException e) {
                next = State.OFF;
                LOG.info(
                        "Regions go over the socket, because the region area {} of the TaskManager"
                            + " at {} cannot be mapped ({}). Mount its directory at the same path"
                            + " for executor and TaskManager, writable for the users of both",
                        made.path(),
                        connection.endpoint(),
                        e.toString());
                leg.attachArea("", 0);
            }
        } finally {
            enter(next, area);
        }
    }

    /** Returns the slots for the tasks of one process: its part, and one task more for skew. */
    private int slotsFor(int processes) {
        if (processes == 1) {
            return regions;
        }
        int tasks = (regions + RegionPool.REGIONS_PER_TASK - 1) / RegionPool.REGIONS_PER_TASK;
        return RegionPool.REGIONS_PER_TASK * ((tasks + processes - 1) / processes + 1);
    }

    private synchronized boolean beginRequest() {
        boolean due =
                state == State.NONE
                        || (state == State.REFUSED
                                && System.nanoTime() - refusedAt >= REFUSED_NANOS);
        if (due) {
            state = State.REQUESTED;
        }
        return due;
    }

    private synchronized void enter(State next, RegionArea area) {
        state = next;
        current = area;
        refusedAt = System.nanoTime();
    }

    /** Drops an area unless another task has replaced it. */
    private synchronized void drop(RegionArea area) {
        if (current == area) {
            enter(State.NONE, null);
        }
    }
}
