package io.sluice.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Map outputs and gates against the mock daemon. */
@Timeout(60)
class ShuffleTest {
  private MockDaemon daemon;
  private ConnectionPool pool;
  private RegionPool regions;
  private ChunkPool chunks;

  @BeforeEach
  void start() throws IOException {
    daemon = new MockDaemon();
    chunks = new ChunkPool(64);
    pool = new ConnectionPool(new ClientOptions("app", "test", 2_000, 2_000, chunks), 4);
    regions = new RegionPool(64 * 1024, 2);
  }

  @AfterEach
  void stop() throws IOException {
    pool.close();
    daemon.close();
  }

  private MapOutputWriter writer(long attempt) {
    return new MapOutputWriter(
        new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER), regions, 1, attempt, 100);
  }

  private Map<Integer, byte[]> write(long attempt, int seed, int... sizes) throws IOException {
    Random random = new Random(seed);
    Map<Integer, byte[]> streams = new TreeMap<>();
    MapOutputWriter writer = writer(attempt);
    for (int partition = 0; partition < sizes.length; partition++) {
      byte[] bytes = new byte[sizes[partition]];
      random.nextBytes(bytes);
      writer.beginPartition(partition);
      if (bytes.length > 0) {
        writer.write(bytes[0]);
        writer.write(bytes, 1, bytes.length - 1);
        streams.put(partition, bytes);
      }
      assertEquals(bytes.length > 0, writer.endPartition() > 0);
    }
    assertEquals(MockDaemon.ID, writer.commit().taskManagerId());
    return streams;
  }

  private InputGate gate(int start, int end, int credit, long[] attempts, int[] streams)
      throws IOException {
    Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, attempts, streams);
    return new InputGate(
        pool.lease(daemon.endpoint(), Message.ROLE_CONSUMER), pool, 1, start, end, credit, List.of(source));
  }

  private static Map<String, byte[]> readAll(InputGate gate) throws IOException {
    Map<String, byte[]> streams = new TreeMap<>();
    for (BlockStream stream = gate.nextStream(); stream != null; stream = gate.nextStream()) {
      streams.put(stream.mapAttemptId() + "/" + stream.subpartition(), stream.readAllBytes());
    }
    return streams;
  }

  private static void assertStreams(Map<Integer, byte[]> written, long attempt, Map<String, byte[]> read) {
    written.forEach((partition, bytes) -> assertArrayEquals(bytes, read.get(attempt + "/" + partition)));
  }

  @ParameterizedTest
  @EnumSource(names = {"NORMAL", "BYTE_BY_BYTE", "LARGE_PAYLOADS"}, value = MockDaemon.Mode.class)
  void whatIsWrittenIsRead(MockDaemon.Mode mode) throws IOException {
    daemon.mode = mode;
    Map<Integer, byte[]> first = write(7, 1, 10, 0, 3000, 1, 0, 70_000, 64 * 1024 - 28, 5);
    Map<Integer, byte[]> second = write(8, 2, 0, 0, 5, 2);
    InputGate gate = gate(0, 8, 2, new long[] {7, 8}, new int[] {6, 2});
    Map<String, byte[]> read = readAll(gate);
    assertEquals(8, read.size());
    assertStreams(first, 7, read);
    assertStreams(second, 8, read);
    assertTrue(gate.localBytes() > 138_000);
    assertEquals(0, gate.remoteBytes());
    assertNull(gate.nextStream());
    gate.close();
    assertEquals(2, pool.idleConnections(), "both connections are clean again");
    assertEquals(2, daemon.connections.get(), "two map outputs shared one connection");
    assertTrue(daemon.received.stream().anyMatch(m -> m.equals(new Message.Pong(-1L))));
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3, 16})
  void blocksLargerThanTheCreditAreReadable(int credit) throws IOException {
    regions = new RegionPool(1024 * 1024, 2);
    Map<Integer, byte[]> written = write(7, 3, 2_000_000);
    assertStreams(written, 7, readAll(gate(0, 1, credit, new long[] {7}, new int[] {1})));
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 3, 16})
  void largePayloadsGoBothWays(int credit) throws IOException {
    daemon.mode = MockDaemon.Mode.LARGE_PAYLOADS;
    regions = new RegionPool(1024 * 1024, 2);
    Map<Integer, byte[]> written = write(7, 3, 10, 2_000_000, 0, 300_000, 70_000);
    assertEquals(100_000, daemon.largestPayload, "what RegionOpened said");
    assertStreams(written, 7, readAll(gate(0, 5, credit, new long[] {7}, new int[] {4})));
    assertEquals(2, pool.idleConnections());
  }

  @Test
  void emptyOutputAndEmptyRange() throws IOException {
    assertTrue(write(7, 1).isEmpty());
    assertTrue(write(8, 1, 0, 0).isEmpty());
    assertEquals(2, daemon.outputs.size());
    InputGate none =
        new InputGate(
            pool.lease(daemon.endpoint(), Message.ROLE_CONSUMER), pool, 1, 0, 2, 2, List.of());
    assertTrue(readAll(none).isEmpty());
  }

  @Test
  void unreadStreamsAreSkippedAndChecked() throws IOException {
    write(7, 1, 5000, 6000, 7000);
    InputGate gate = gate(0, 3, 2, new long[] {7}, new int[] {3});
    int streams = 0;
    while (gate.nextStream() != null) {
      streams++;
    }
    assertEquals(3, streams);
  }

  @Test
  void earlyCloseGivesTheConnectionBack() throws IOException {
    write(7, 1, 50_000, 50_000);
    InputGate gate = gate(0, 2, 4, new long[] {7}, new int[] {2});
    assertEquals(5, gate.nextStream().readNBytes(5).length);
    gate.close();
    gate.close();
    assertEquals(2, pool.idleConnections());
    assertStreams(
        write(9, 4, 100), 9, readAll(gate(0, 1, 4, new long[] {9}, new int[] {1})));
  }

  @Test
  void abortedOutputIsNotThere() throws IOException {
    MapOutputWriter writer = writer(7);
    writer.beginPartition(0);
    writer.write(new byte[200_000], 0, 200_000);
    writer.abort();
    writer.abort();
    assertTrue(daemon.outputs.isEmpty());
    assertEquals(1, pool.idleConnections(), "the abort was confirmed");
    assertThrows(IOException.class, () -> writer.write(new byte[10], 0, 10));
  }

  @ParameterizedTest
  @ValueSource(classes = {Message.OpenPartition.class, Message.RegionData.class, Message.FinishPartition.class})
  void aMapOutputOfOneRegionIsSentAgainWhenItsConnectionIsLost(Class<?> where) throws IOException {
    daemon.cut.set(where::isInstance);
    Map<Integer, byte[]> written = write(7, 1, 5000, 0, 20_000);
    assertEquals(2, daemon.connections.get());
    assertStreams(written, 7, readAll(gate(0, 3, 2, new long[] {7}, new int[] {2})));
  }

  @ParameterizedTest
  @EnumSource(
      names = {"FLIP_A_BIT", "PARTITION_NOT_FOUND", "OMIT_LAST_BLOCK"},
      value = MockDaemon.Mode.class)
  void aBadMapOutputIsNamed(MockDaemon.Mode mode) throws IOException {
    write(7, 1, 5000, 101);
    daemon.mode = mode;
    InputGate gate = gate(0, 2, 2, new long[] {7}, new int[] {2});
    SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
    assertEquals(7L, failure.mapAttemptId());
    assertFalse(failure.isUnreachable());
    gate.close();
  }

  @Test
  void streamsThatSparkKnowsOfMustCome() throws IOException {
    write(7, 1, 5000);
    InputGate gate = gate(0, 2, 2, new long[] {7}, new int[] {2});
    SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
    assertTrue(failure.getMessage().contains("1 of the 2"), failure.getMessage());
  }

  @Test
  void wrongTotalsFailTheSource() throws IOException {
    write(7, 1, 5000);
    daemon.mode = MockDaemon.Mode.WRONG_TOTALS;
    InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
    SourceFailure failure = assertThrows(SourceFailure.class, () -> readAll(gate));
    assertEquals(ErrorCode.END_OF_PARTITION_MISMATCH, failure.code());
  }

  @Test
  void disconnectInTheMiddleIsConnectionLost() throws IOException {
    write(7, 1, 5000);
    daemon.mode = MockDaemon.Mode.DISCONNECT_IN_DATA;
    InputGate gate = gate(0, 1, 4, new long[] {7}, new int[] {1});
    assertThrows(ClientException.ConnectionLost.class, () -> readAll(gate));
    assertEquals(MockDaemon.ID, gate.unfinishedLocalSource().taskManagerId());
    gate.close();
    assertEquals(1, pool.idleConnections(), "only the producer's");
  }

  @Test
  void silenceEndsAtTheDeadline() throws IOException {
    write(7, 1, 5000);
    daemon.mode = MockDaemon.Mode.SILENT;
    InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
    ClientException.Deadline error =
        assertThrows(ClientException.Deadline.class, () -> readAll(gate));
    assertTrue(error.getMessage().contains("spark.sluice.io.timeout"));
    gate.close();
  }

  @Test
  void anInterruptEndsTheWait() throws Exception {
    write(7, 1, 5000);
    daemon.mode = MockDaemon.Mode.SILENT;
    InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
    Thread.currentThread().interrupt();
    assertThrows(ClientException.Interrupted.class, () -> readAll(gate));
    assertTrue(Thread.interrupted(), "the interrupt is left for the task");
    gate.close();
  }

  @Test
  void closeFromAnotherThreadEndsTheWait() throws Exception {
    write(7, 1, 5000);
    daemon.mode = MockDaemon.Mode.SILENT;
    InputGate gate = gate(0, 1, 2, new long[] {7}, new int[] {1});
    java.util.concurrent.FutureTask<Throwable> reader =
        new java.util.concurrent.FutureTask<>(
            () -> assertThrows(ClientException.Interrupted.class, () -> readAll(gate)));
    Thread thread = new Thread(reader);
    thread.start();
    while (gate.isIdle()) {
      Thread.onSpinWait();
    }
    gate.close();
    assertTrue(reader.get() instanceof ClientException.Interrupted);
  }

  @Test
  void nobodyListens() throws IOException {
    Endpoint gone = daemon.endpoint();
    daemon.close();
    ClientException.ConnectFailed error =
        assertThrows(
            ClientException.ConnectFailed.class, () -> pool.lease(gone, Message.ROLE_DRIVER));
    assertTrue(error.getMessage().contains("spark.sluice.endpoints"), error.getMessage());
    assertThrows(
        ClientException.ConnectFailed.class,
        () -> pool.lease(new Endpoint("/nonexistent/socket", null, 0), Message.ROLE_DRIVER));
  }
}
