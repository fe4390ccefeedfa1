package io.sluice.client.output;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.RegionArea;
import io.sluice.client.support.MockAreas;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Message;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Writes map outputs whose regions are in memory shared with the mock daemon. */
@Timeout(60)
class RegionAreasTest {
    private static final int REGION = 64 * 1024;
    private static final int SLOTS = 4;
    private static final Message.AttachRegionArea NEW =
            new Message.AttachRegionArea("", SLOTS * REGION);
    private static final Message.AttachRegionArea NO_MORE = new Message.AttachRegionArea("", 0);

    /** Bytes in a region of one partition and one block, block header excluded. */
    private static final int FULL = REGION - Blocks.HEADER_BYTES;

    @TempDir Path directory;

    private MockDaemon daemon;
    private MockAreas areas;
    private ConnectionPool pool;
    private RegionPool regions;

    @BeforeEach
    void start() throws IOException {
        start(new MockDaemon(directory.resolve("socket")));
    }

    private void start(MockDaemon started) {
        daemon = started;
        areas = new MockAreas(directory);
        daemon.areas = areas;
        pool = newPool();
        regions = new RegionPool(REGION, 2, SLOTS);
    }

    @AfterEach
    void stop() throws IOException {
        pool.close();
        daemon.close();
    }

    private static ConnectionPool newPool() {
        return new ConnectionPool(
                new ClientOptions("app", "test", 2_000, 10_000, new ChunkPool(64)), 4);
    }

    /** Gives up the idle connections, so that the next one is new. */
    private void reconnect() {
        pool.close();
        pool = newPool();
    }

    private MapOutputWriter writer(long attempt) {
        TestConnections connections =
                new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER);
        return new MapOutputWriter(connections, regions, 1, attempt, 1, Blocks.MAX_STORED_BYTES);
    }

    /** Commits a map output of the given number of full regions; returns its writer. */
    private MapOutputWriter write(long attempt, int count) throws IOException {
        return write(writer(attempt), attempt, count);
    }

    private MapOutputWriter write(MapOutputWriter writer, long attempt, int count)
            throws IOException {
        byte[] bytes = new byte[count * FULL];
        new Random(attempt).nextBytes(bytes);
        writer.beginPartition(0);
        writer.write(bytes, 0, bytes.length);
        writer.endPartition();
        writer.commit();
        assertArrayEquals(bytes, stored(attempt), "of map output " + attempt);
        assertEquals(count, daemon.outputs.get(attempt).size(), "regions");
        return writer;
    }

    /** Returns the daemon's bytes of a map output, without block headers. */
    private byte[] stored(long attempt) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (TreeMap<Integer, byte[]> region : daemon.outputs.get(attempt)) {
            byte[] blocks = region.get(0);
            bytes.write(blocks, Blocks.HEADER_BYTES, blocks.length - Blocks.HEADER_BYTES);
        }
        return bytes.toByteArray();
    }

    private <T extends Message> List<T> received(Class<T> type) {
        return daemon.received.stream().filter(type::isInstance).map(type::cast).toList();
    }

    private List<Message.AttachRegionArea> asked() {
        return received(Message.AttachRegionArea.class);
    }

    /** Returns the numbers of the announced regions, each with its way: socket or area. */
    private List<String> announced() {
        List<String> found = new ArrayList<>();
        for (Message message : daemon.received) {
            if (message instanceof Message.BeginRegion begin) {
                found.add("socket " + begin.region());
            } else if (message instanceof Message.SharedRegion shared) {
                found.add("area " + shared.region());
            }
        }
        return found;
    }

    private static Message.AttachRegionArea again(int area) {
        return new Message.AttachRegionArea("area-" + area, 0);
    }

    @Test
    void allRegionsAfterTheFirstAreSentThroughTheArea() throws IOException {
        MapOutputWriter writer = write(7, 5);
        assertEquals(List.of(NEW), asked());
        assertEquals(List.of("socket 0", "area 1", "area 2", "area 3", "area 4"), announced());
        assertEquals(4L * REGION, writer.sharedBytes());
        assertEquals(
                1,
                received(Message.RegionData.class).stream()
                        .filter(data -> data.offset() == 0)
                        .count());
    }

    @Test
    void aSharedRegionNamesTheOffsetOfItsBytes() throws IOException {
        MapOutputWriter other = writer(1);
        write(7, 2);
        Message.SharedRegion shared = received(Message.SharedRegion.class).get(0);
        assertEquals(1, shared.region());
        assertEquals(0, shared.firstSubpartition());
        assertArrayEquals(new long[] {REGION}, shared.lengths());
        byte[] bytes = areas.read("area-1", shared.areaOffset(), REGION);
        CRC32C crc = new CRC32C();
        crc.update(bytes);
        assertEquals(crc.getValue(), shared.crc32c());
        assertArrayEquals(daemon.outputs.get(7L).get(1).get(0), bytes);
        // A region that is filled meanwhile is in another place.
        other.beginPartition(0);
        other.write(1);
        MapOutputWriter third = write(8, 1);
        other.abort();
        assertEquals(REGION, third.sharedBytes());
        assertNotEquals(
                shared.areaOffset(), received(Message.SharedRegion.class).get(1).areaOffset());
    }

    @Test
    void aConnectionOfThePoolIsNotAttachedTwice() throws IOException {
        write(7, 2);
        for (long attempt = 8; attempt < 20; attempt++) {
            assertEquals(3L * REGION, write(attempt, 3).sharedBytes());
        }
        assertEquals(1, daemon.connections.get());
        assertEquals(List.of(NEW), asked());
    }

    @Test
    void anotherConnectionIsAttachedToTheSameArea() throws IOException {
        write(7, 1);
        MapOutputWriter open = writer(8);
        open.beginPass(false);
        open.beginPartition(0);
        open.write(1);
        open.endPartition();
        open.beginPass(true);
        assertEquals(REGION, write(9, 1).sharedBytes());
        open.abort();
        assertEquals(2, daemon.connections.get());
        assertEquals(List.of(NEW, again(1)), asked());
    }

    @Test
    void aRegionWithoutASlotGoesOverTheSocket() throws IOException {
        write(7, 1);
        List<ByteBuffer> taken = new ArrayList<>();
        for (int i = 0; i < SLOTS - 1; i++) {
            taken.add(regions.take(0));
        }
        assertEquals(1, regions.idleRegions(), "slots come first");
        // One slot for two regions: a region filled while the other is in the slot goes over the
        // socket.
        MapOutputWriter writer = write(8, 4);
        assertEquals(2L * REGION, writer.sharedBytes());
        taken.forEach(regions::recycle);
        assertEquals(3L * REGION, write(9, 3).sharedBytes());
    }

    @Test
    void aRefusedAreaIsNotRequestedAgainAtOnce() throws IOException {
        areas.refuses = true;
        assertEquals(0, write(7, 3).sharedBytes());
        reconnect();
        assertEquals(0, write(8, 3).sharedBytes());
        assertEquals(2, daemon.connections.get());
        assertEquals(List.of(NEW), asked());
    }

    @Test
    void anExecutorThatCannotMapTheFileStopsAsking() throws IOException {
        areas.elsewhere = true;
        assertEquals(0, write(7, 3).sharedBytes());
        assertEquals(List.of(NEW, NO_MORE), asked());
        areas.elsewhere = false;
        reconnect();
        assertEquals(0, write(8, 3).sharedBytes());
        assertEquals(2, daemon.connections.get());
        assertEquals(2, asked().size());
    }

    @Test
    void noAreaIsRequestedWithoutSlots() throws IOException {
        regions = new RegionPool(REGION, 2, 0);
        assertEquals(0, write(7, 3).sharedBytes());
        assertEquals(List.of(), asked());
    }

    @Test
    void noAreaIsRequestedOverTcp() throws IOException {
        stop();
        start(new MockDaemon());
        assertEquals(0, write(7, 3).sharedBytes());
        assertEquals(List.of(), asked());
    }

    @Test
    void aTaskManagerWithoutTheAreaTakesRegionsOverTheSocket() throws IOException {
        write(7, 2);
        MockDaemon first = daemon;
        try (MockDaemon other = new MockDaemon(directory.resolve("other"))) {
            other.areas = areas;
            daemon = other;
            assertEquals(0, write(8, 3).sharedBytes(), "from slots of the first one's area");
            assertEquals(List.of(), asked());
        }
        daemon = first;
        reconnect();
        assertEquals(REGION, write(9, 1).sharedBytes());
        assertEquals(List.of(NEW, again(1)), asked());
    }

    /** Commits a map output of two regions at {@link #daemon}; returns the shared bytes. */
    private long writeExpecting(int process, long attempt) throws IOException {
        MapOutputWriter writer =
                new MapOutputWriter(
                        new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER),
                        regions,
                        process,
                        1,
                        attempt,
                        1,
                        Blocks.MAX_STORED_BYTES,
                        Replicas.ONE);
        return write(writer, attempt, 2).sharedBytes();
    }

    private static MockDaemon processOfTwo(MockDaemon daemon, int process, MockAreas areas) {
        daemon.areas = areas;
        daemon.process = process;
        daemon.processes = 2;
        return daemon;
    }

    @Test
    void theAreaIsThatOfTheProcessThatTakesTheOutput() throws IOException {
        MockDaemon process0 = processOfTwo(daemon, 0, areas);
        Path ofOther = Files.createDirectory(directory.resolve("areas-1"));
        try (MockDaemon process1 =
                processOfTwo(
                        new MockDaemon(directory.resolve("socket.1")), 1, new MockAreas(ofOther))) {
            // The first task of an executor cannot know that there are two.
            daemon = process1;
            assertEquals(REGION, writeExpecting(0, 1));
            assertEquals(2L * REGION, writeExpecting(1, 2));
            daemon = process0;
            assertEquals(REGION, writeExpecting(0, 3), "in an area of its own");
            assertEquals(2L * REGION, writeExpecting(0, 4));
            // Another process takes over.
            assertEquals(REGION, writeExpecting(1, 5), "all but the first region");
            daemon = process1;
            assertEquals(REGION, writeExpecting(0, 6), "all but the first region");
            for (MockDaemon each : List.of(process0, process1)) {
                daemon = each;
                assertEquals(List.of(NEW), asked());
            }
            assertNotEquals(
                    regions.areas(0).current().endpoint(), regions.areas(1).current().endpoint());
        } finally {
            daemon = process0;
        }
        int idle = regions.idleRegions();
        List<ByteBuffer> slots = new ArrayList<>();
        for (int i = 0; i < 2 * SLOTS; i++) {
            slots.add(regions.take(i % 2));
        }
        assertEquals(idle, regions.idleRegions(), "every slot was free");
        slots.forEach(regions::recycle);
        assertEquals(idle, regions.idleRegions());
    }

    @ParameterizedTest
    @CsvSource({"1, 16", "2, 10", "3, 8", "8, 4"})
    void aProcessSharesSlotsForItsPartOfTheTasks(int processes, long slots) throws IOException {
        regions = new RegionPool(REGION, 8, 16);
        daemon.processes = processes;
        write(7, 1);
        assertEquals(List.of(new Message.AttachRegionArea("", slots * REGION)), asked());
    }

    @Test
    void aTaskManagerThatReplacesAnotherIsAskedForAnArea() throws IOException {
        write(7, 2);
        daemon.id = "tm-other";
        areas.forget();
        reconnect();
        assertEquals(
                2L * REGION,
                write(8, 3).sharedBytes(),
                "all but the first, in a slot of the old area");
        assertEquals(List.of(NEW, again(1), NEW), asked());
    }

    @Test
    void oneTaskRequestsAnAreaWhileOthersContinue() throws Exception {
        areas.answers = new CountDownLatch(1);
        FutureTask<MapOutputWriter> asking = new FutureTask<>(() -> write(7, 2));
        new Thread(asking, "asking").start();
        areas.wanted.await();
        assertEquals(0, write(8, 2).sharedBytes());
        assertFalse(asking.isDone());
        areas.answers.countDown();
        assertEquals(REGION, asking.get().sharedBytes());
        assertEquals(List.of(NEW), asked());
    }

    @Test
    void aConnectionLostDuringTheRequestLeadsToAnotherRequest() throws IOException {
        daemon.cut.set(NEW::equals);
        assertEquals(REGION, write(7, 2).sharedBytes());
        assertEquals(List.of(NEW, NEW), asked());
    }

    @Test
    void aRegionIsAnnouncedAgainWhenOnlyTheConnectionIsLost() throws IOException {
        daemon.cut.set(m -> m instanceof Message.SecureRegion secure && secure.region() == 1);
        MapOutputWriter writer = write(7, 3);
        assertEquals(List.of(NEW, again(1)), asked());
        assertEquals(List.of("socket 0", "area 1", "area 1", "area 2"), announced());
        assertEquals(3L * REGION, writer.sharedBytes(), "what was sent again is counted again");
    }

    @Test
    void aRegionGoesOverTheSocketWhenItsAreaIsGone() throws IOException {
        write(1, 1);
        daemon.cut.set(
                m -> {
                    boolean here = m instanceof Message.SecureRegion secure && secure.region() == 1;
                    if (here) {
                        areas.forget();
                    }
                    return here;
                });
        MapOutputWriter writer = writer(7);
        write(writer, 7, 6);
        assertEquals(List.of(NEW, again(1), NEW), asked());
        List<String> announced = announced();
        assertEquals(List.of("socket 0", "area 0", "area 1", "socket 1"), announced.subList(0, 4));
        // The next region is in a slot of the old area if it was begun before the loss was noticed.
        assertEquals(List.of("area 3", "area 4", "area 5"), announced.subList(5, 8));
        RegionArea now = regions.areas(0).current();
        for (int i = 0; i < SLOTS; i++) {
            assertTrue(now.offsetOf(regions.take(0)) >= 0, "no slot of the new area");
        }
        assertEquals(1, regions.idleRegions(), "the first region's buffer, and no slot");
    }

    @Test
    void slotsOfADroppedAreaAreForgotten() throws IOException {
        write(7, 1);
        RegionArea before = regions.areas(0).current();
        ByteBuffer slot = regions.take(0);
        assertTrue(before.offsetOf(slot) >= 0);
        areas.forget();
        areas.refuses = true;
        reconnect();
        assertEquals(0, write(8, 1).sharedBytes(), "from a slot of the old area, over the socket");
        assertEquals(List.of(NEW, again(1), NEW), asked());
        assertNull(regions.areas(0).current());
        int idle = regions.idleRegions();
        regions.recycle(slot);
        assertEquals(idle, regions.idleRegions());
        assertEquals(-1, before.offsetOf(regions.take(0)));
    }

    /**
     * Loses the connection at each message in turn, with shared regions, together with the answer
     * or before it.
     */
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 3})
    void aMapOutputContinuesWhereverItsConnectionIsLost(int how) throws IOException {
        daemon.cutAfter = (how & 1) > 0;
        boolean restarts = (how & 2) > 0;
        int messages = 0;
        for (long attempt = 100; ; attempt++) {
            AtomicInteger left = new AtomicInteger(messages++);
            daemon.cut.set(
                    m -> {
                        boolean here =
                                !(m instanceof Message.Pong
                                        || m instanceof Message.Hello
                                        || m instanceof Message.RegionData);
                        boolean now = here && left.getAndDecrement() == 0;
                        if (now && restarts) {
                            areas.forget();
                        }
                        return now;
                    });
            int before = daemon.connections.get();
            write(attempt, 4);
            if (daemon.cut.getAndSet(null) != null) {
                break; // There were fewer messages than that.
            }
            assertTrue(daemon.connections.get() > before);
        }
        // OpenPartition, four regions, three of them secured, FinishPartition.
        assertTrue(messages >= 9, messages + " messages");
    }
}
