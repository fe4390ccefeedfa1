package io.sluice.client.gate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.LongFunction;
import java.util.stream.LongStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Reads map outputs at other TaskManagers after theirs has failed. The mock daemon serves the
 * channels of all of them.
 */
@Timeout(60)
class ReplicaFailoverTest extends ShuffleTestCase {
    private static final String A = "tm-a";
    private static final String B = "tm-b";
    private static final String C = "tm-c";

    /**
     * The TaskManagers that have each map output, in the order in which the directory names them.
     */
    private final Map<Long, List<String>> known = new TreeMap<>();

    /** The TaskManagers that the directory has lost, too. */
    private Set<String> gone = Set.of();

    /** What was avoided in each question. */
    private final List<Set<String>> questions = new ArrayList<>();

    private final ReplicaLocator directory =
            (shuffleId, ids, avoided) -> {
                assertEquals(1, shuffleId);
                questions.add(new TreeSet<>(avoided));
                return new ReplicaLocator.Replicas(
                        Arrays.stream(ids).mapToObj(id -> place(id, avoided)).toList(), gone);
            };

    private TaskManagerAddress place(long id, Set<String> avoided) {
        return known.getOrDefault(id, List.of()).stream()
                .filter(taskManager -> !avoided.contains(taskManager))
                .findFirst()
                .map(taskManager -> new TaskManagerAddress(taskManager, "127.0.0.1", 1))
                .orElse(null);
    }

    @BeforeEach
    void connect() {
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        readers.places = directory;
    }

    private void know(long first, long end, LongFunction<List<String>> taskManagers) {
        LongStream.range(first, end).forEach(id -> known.put(id, taskManagers.apply(id)));
    }

    private static Source source(String taskManager, int streams, long... attempts) {
        int[] all = new int[attempts.length];
        Arrays.fill(all, streams);
        int[] mapIndexes = Arrays.stream(attempts).mapToInt(id -> (int) id).toArray();
        return new Source(taskManager, "127.0.0.1", 1, attempts, all, mapIndexes);
    }

    private InputGate gate(int partitions, Source... sources) throws IOException {
        return new InputGate(readers, 1, 0, partitions, 64, false, List.of(sources));
    }

    /** Returns the map attempt of each stream, as they are read. */
    private static List<Long> attempts(InputGate gate) throws IOException {
        List<Long> attempts = new ArrayList<>();
        for (BlockStream stream = gate.next(); stream != null; stream = gate.next()) {
            attempts.add(stream.mapAttemptId());
            stream.readAllBytes();
        }
        return attempts;
    }

    /** Returns for each channel that was requested at a TaskManager its map outputs. */
    private List<List<Long>> requested(String taskManager) {
        List<List<Long>> requested = new ArrayList<>();
        for (Message message : daemon.received) {
            if (message instanceof Message.OpenGate open) {
                open.channels().stream()
                        .filter(channel -> channel.taskManagerId().equals(taskManager))
                        .map(c -> Arrays.stream(c.mapAttemptIds()).boxed().toList())
                        .forEach(requested::add);
            }
        }
        return requested;
    }

    @ParameterizedTest
    @EnumSource(
            names = {
                "CONNECT_FAILED",
                "CONNECT_REFUSED",
                "CONNECTION_LOST",
                "SHUTTING_DOWN",
                "TASKMANAGER_MISMATCH",
                "PARTITION_MOVED",
                "PARTITION_NOT_FOUND",
                "STORAGE_UNAVAILABLE",
                "INTERNAL"
            },
            value = ErrorCode.class)
    void aSourceThatFailsAtAnyBufferIsReadElsewhere(ErrorCode code) throws IOException {
        Map<Long, Map<Integer, byte[]>> written = new TreeMap<>();
        for (long attempt = 7; attempt < 10; attempt++) {
            written.put(attempt, write(attempt, (int) attempt, 700, 0, 3000, 1, 70_000, 4000));
        }
        know(7, 10, id -> List.of(A, B));
        int buffers = 0;
        for (int at = 0; ; at += at < 10 ? 1 : 7) {
            int failing = at;
            connect();
            daemon.fault =
                    (c, buffer) -> c.taskManagerId().equals(A) && buffer == failing ? code : null;
            daemon.faultNamesOutput = at % 2 == 0;
            Map<String, byte[]> read = readAll(gate(6, source(A, 5, 7, 8, 9)));
            assertEquals(15, read.size());
            written.forEach((attempt, streams) -> assertStreams(streams, attempt, read));
            if (readers.failedOver.get() == 0) {
                break; // It fails behind the last buffer, or not at all.
            }
            buffers++;
            assertEquals(1, readers.failedOver.get(), code + " at buffer " + at);
            assertEquals(0, readers.reconnected.get(), "another place is not waited for");
        }
        assertTrue(buffers > 30, buffers + " buffers");
    }

    @Test
    void whatWasReadWholeNeedsNoOtherPlace() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 900);
        daemon.fault = (channel, buffer) -> buffer == 1 ? ErrorCode.CONNECTION_LOST : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertEquals(List.of(), questions);
        assertEquals(0, readers.reconnected.get());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 7, 9, 20})
    void theRestIsDividedByPlaceAndReadInMapOrder(int at) throws IOException {
        for (long attempt = 70; attempt < 76; attempt++) {
            write(attempt, 1, 3000, 5000);
        }
        know(70, 76, id -> List.of(id % 2 == 0 ? B : C));
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(A) && buffer == at
                                ? ErrorCode.CONNECTION_LOST
                                : null;
        List<Long> read = attempts(gate(2, source(A, 2, 70, 71, 72, 73, 74, 75)));
        List<Long> wanted = LongStream.range(140, 152).mapToObj(i -> i / 2).toList();
        assertEquals(wanted, read);
        assertEquals(1, readers.failedOver.get());
        assertTrue(requested(B).stream().flatMap(List::stream).allMatch(id -> id % 2 == 0));
        assertTrue(requested(C).stream().flatMap(List::stream).allMatch(id -> id % 2 == 1));
    }

    @Test
    void aPlaceThatFailsTooIsLeftForTheNext() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 70_000);
        know(7, 8, id -> List.of(A, B, C));
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(A) && buffer == 5
                                ? ErrorCode.CONNECTION_LOST
                                : c.taskManagerId().equals(B) && buffer == 20
                                        ? ErrorCode.CONNECT_FAILED
                                        : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertEquals(List.of(Set.of(A), Set.of(A, B)), questions);
        assertEquals(2, readers.failedOver.get());
    }

    @Test
    void aPlaceThatBecomesKnownLaterIsUsedThen() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        daemon.fault =
                (c, buffer) -> {
                    if (c.taskManagerId().equals(B)) {
                        return null;
                    }
                    if (questions.size() == 3) {
                        known.put(7L, List.of(A, B));
                    }
                    return ErrorCode.PARTITION_MOVED;
                };
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertTrue(questions.size() >= 4, questions.toString());
        assertTrue(readers.reconnected.get() >= 3);
        assertEquals(1, readers.failedOver.get());
    }

    @Test
    void aTaskManagerThatComesBackIsReadAgain() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        know(7, 8, id -> List.of(A, B));
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(B) || questions.size() < 4
                                ? ErrorCode.CONNECT_FAILED
                                : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertTrue(questions.contains(Set.of(B)), questions.toString());
    }

    @ParameterizedTest
    @CsvSource({"CONNECT_FAILED", "PARTITION_MOVED", "PARTITION_NOT_FOUND", "CHECKSUM_MISMATCH"})
    void thereIsAnEndWhenNoPlaceIsGood(ErrorCode code) throws IOException {
        write(7, 1, 5000);
        know(7, 8, id -> List.of(A, B, C));
        readers.returnTimeoutMillis = 300;
        daemon.fault = (c, buffer) -> code;
        daemon.faultNamesOutput = true;
        InputGate gate = gate(1, source(A, 1, 7));
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(code, failure.code());
        assertTrue(requested(B).size() >= 1);
        assertTrue(requested(C).size() >= 1);
        assertTrue(questions.size() < 30, questions.size() + " questions");
        gate.close();
    }

    @Test
    void aHostThatRefusesConnectionsIsGivenUpSooner() throws IOException {
        write(7, 1, 5000);
        readers.returnTimeoutMillis = 3_600_000;
        readers.refusedTimeoutMillis = 300;
        daemon.fault = (c, buffer) -> ErrorCode.CONNECT_REFUSED;
        InputGate gate = gate(1, source(A, 1, 7));
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(ErrorCode.CONNECT_REFUSED, failure.code());
        assertTrue(requested(A).size() > 1, "it is tried again");
        gate.close();
    }

    @Test
    void aTaskManagerThatTheDriverHasLostTooIsGivenUpAtOnce() throws IOException {
        write(7, 1, 5000);
        readers.returnTimeoutMillis = 3_600_000;
        gone = Set.of(A);
        daemon.fault = (c, buffer) -> ErrorCode.CONNECT_FAILED;
        InputGate gate = gate(1, source(A, 1, 7));
        assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(1, requested(A).size());
        gate.close();
    }

    @Test
    void whatHasNoReplicaAtATaskManagerThatIsGoneIsGivenUpAtOnce() throws IOException {
        write(7, 1, 5000);
        write(8, 1, 5000);
        readers.returnTimeoutMillis = 3_600_000;
        know(7, 8, id -> List.of(B));
        gone = Set.of(A);
        daemon.fault = (c, buffer) -> c.taskManagerId().equals(A) ? ErrorCode.CONNECT_FAILED : null;
        InputGate gate = gate(1, source(A, 1, 7, 8));
        SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
        assertEquals(A, failure.source().taskManagerId());
        assertEquals(1, requested(A).size());
        gate.close();
    }

    @Test
    void otherGatesBeginElsewhereAfterAFailure() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        know(7, 8, id -> List.of(A, B));
        daemon.fault = (c, buffer) -> c.taskManagerId().equals(A) ? ErrorCode.CONNECT_FAILED : null;
        for (int gate = 1; gate <= 3; gate++) {
            assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
            assertEquals(gate, requested(B).size());
            assertEquals(gate, readers.failedOver.get());
        }
        assertEquals(1, requested(A).size(), "only the first gate tries");
        assertEquals(List.of(Set.of(A), Set.of(A), Set.of(A)), questions);
        assertEquals(0, readers.reconnected.get());
    }

    @Test
    void aGateBeginsElsewhereWithWhatIsThere() throws IOException {
        for (long attempt = 70; attempt < 74; attempt++) {
            write(attempt, 1, 3000);
        }
        known.put(70L, List.of(B));
        known.put(73L, List.of(B));
        readers.absences.add(A);
        assertEquals(List.of(70L, 71L, 72L, 73L), attempts(gate(1, source(A, 1, 70, 71, 72, 73))));
        assertEquals(List.of(List.of(71L, 72L)), requested(A));
        assertEquals(List.of(List.of(70L, 73L)), requested(B));
        assertEquals(1, questions.size());
    }

    @Test
    void aTaskManagerThatAloneHasTheDataIsNotAskedAboutAgain() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        readers.absences.add(A);
        for (int gate = 0; gate < 2; gate++) {
            assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        }
        assertEquals(1, questions.size());
        assertEquals(2, requested(A).size());
    }

    @Test
    void aPlaceAtWhichReadingBeganMayFailToo() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        know(7, 8, id -> List.of(A, B));
        readers.absences.add(A);
        daemon.fault = (c, buffer) -> c.taskManagerId().equals(B) ? ErrorCode.CONNECT_FAILED : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertEquals(1, requested(A).size(), "it is back");
    }

    @Test
    void theOwnTaskManagerIsNotAbsent() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        know(7, 8, id -> List.of(B));
        readers.absences.add(MockDaemon.ID);
        for (int gate = 0; gate < 2; gate++) {
            assertStreams(written, 7, readAll(gate(1, source(MockDaemon.ID, 1, 7))));
        }
        assertEquals(1, requested(B).size());
        assertEquals(1, requested(MockDaemon.ID).size());
    }

    @Test
    void theDirectoryIsAskedAfterFewerAndFewerAttemptsWhileATaskManagerIsAway() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        readers.returnTimeoutMillis = 60_000;
        daemon.fault = (c, buffer) -> requested(A).size() <= 4 ? ErrorCode.CONNECT_FAILED : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertEquals(5, requested(A).size());
        assertEquals(2, questions.size(), "after the first and the third failure");
    }

    @Test
    void damageIsRequestedAgainBeforeAnotherPlaceIsTried() throws IOException {
        write(7, 1, 5000);
        write(8, 1, 5000);
        know(7, 9, id -> List.of(B));
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(A) && c.mapAttemptIds()[0] == 7 && buffer == 1
                                ? ErrorCode.CHECKSUM_MISMATCH
                                : null;
        assertEquals(List.of(7L, 8L), attempts(gate(1, source(A, 1, 7, 8))));
        assertEquals(1, readers.refetched.get());
        assertEquals(1, readers.failedOver.get());
        assertEquals(List.of(List.of(7L)), requested(B), "the rest is good where it is");
    }

    @Test
    void aReportOfDamageNamesWhatIsUnread() throws IOException {
        for (long attempt = 7; attempt < 10; attempt++) {
            write(attempt, 1, 5000);
        }
        daemon.features = Frames.DAMAGE_REPORTS;
        // The first block of map output 8 names another one, so that nobody knows whose it is.
        daemon.outputs.get(8L).get(0).firstEntry().getValue()[Blocks.MAP_ATTEMPT] ^= 64;
        assertThrows(SourceFailure.class, () -> readAll(gate(1, source(A, 1, 7, 8, 9))));
        Message.ReportDamage report =
                daemon.received.stream()
                        .filter(Message.ReportDamage.class::isInstance)
                        .map(Message.ReportDamage.class::cast)
                        .findFirst()
                        .orElseThrow();
        assertEquals(List.of(8L, 9L), report.mapAttemptIds());
    }

    @Test
    void onlyWhatIsNowhereElseStays() throws IOException {
        for (long attempt = 70; attempt < 74; attempt++) {
            write(attempt, 1, 3000);
        }
        known.put(70L, List.of(B));
        known.put(72L, List.of(B));
        daemon.faultNamesOutput = true;
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(A) && c.mapAttemptIds()[0] == 70
                                ? ErrorCode.PARTITION_NOT_FOUND
                                : null;
        assertEquals(List.of(70L, 71L, 72L, 73L), attempts(gate(1, source(A, 1, 70, 71, 72, 73))));
        assertEquals(List.of(List.of(70L, 71L, 72L, 73L), List.of(71L, 73L)), requested(A));
        assertEquals(List.of(List.of(70L, 72L)), requested(B));
    }

    @Test
    void theAnswerItselfMayNameThePlace() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        daemon.faultNamesOutput = true;
        daemon.faultValue = "tm-b 127.0.0.2:7337";
        daemon.fault =
                (c, buffer) -> c.taskManagerId().equals(A) ? ErrorCode.PARTITION_MOVED : null;
        assertStreams(written, 7, readAll(gate(1, source(A, 1, 7))));
        assertEquals(List.of(List.of(7L)), requested(B));
    }

    @Test
    void aStalledSourceIsLeft() throws IOException {
        write(70, 1, 5000);
        write(71, 1, 5000);
        know(70, 72, id -> List.of(B));
        daemon.answersPings = true;
        daemon.silentSources = Set.of(A);
        assertEquals(List.of(70L, 71L), attempts(gate(1, source(A, 1, 70, 71))));
        assertEquals(1, readers.failedOver.get());
    }

    @Test
    void theOwnTaskManagerIsLeftIfItLacksAnOutput() throws IOException {
        Map<Integer, byte[]> written = write(7, 1, 5000);
        know(7, 8, id -> List.of(B));
        daemon.fault =
                (c, buffer) ->
                        c.taskManagerId().equals(MockDaemon.ID)
                                ? ErrorCode.STORAGE_UNAVAILABLE
                                : null;
        InputGate gate = gate(1, source(MockDaemon.ID, 1, 7));
        assertStreams(written, 7, readAll(gate));
        assertTrue(gate.remoteBytes() > 5000);
        assertEquals(0, gate.localBytes());
    }

    @Test
    void aPlaceIsReadFromAnAnswer() {
        assertEquals(
                new TaskManagerAddress("tm", "::1", 7337),
                TaskManagerAddress.parse("tm [::1]:7337"));
        for (String text : List.of("", "tm", " host:1", "tm host", "tm host:0", "tm unix:/a")) {
            assertNull(TaskManagerAddress.parse(text), text);
        }
    }
}
