package io.sluice.client;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BooleanSupplier;

/**
 * The channels of an input gate on one connection. The first of them, and those that are asked for again later, are gates of
 * their own to the TaskManager.
 */
final class ConsumerLeg implements FrameHandler {
  private final TaskManagerConnection connection;
  private final long shuffleId;
  private final int startSubpartition;
  private final int endSubpartition;
  private final int credit;
  private final long waitedBefore;

  /** All that were ever asked for: what was on its way for one that was given up may still come. */
  private final Map<Long, InputChannel> channels = new HashMap<>();
  private final Set<Long> openGates = new HashSet<>();

  private boolean ponged;
  private long localBytes;
  private long remoteBytes;
  private Message.ErrorResponse gateError;

  ConsumerLeg(
      TaskManagerConnection connection,
      long shuffleId,
      int startSubpartition,
      int endSubpartition,
      int credit) {
    this.connection = connection;
    this.shuffleId = shuffleId;
    this.startSubpartition = startSubpartition;
    this.endSubpartition = endSubpartition;
    this.credit = credit;
    this.waitedBefore = connection.waitedNanos();
    connection.setHandler(this);
  }

  TaskManagerConnection connection() {
    return connection;
  }

  /** Asks for channels. */
  void ask(List<InputChannel> asked) throws IOException {
    long gate = connection.nextNumber();
    List<Message.GateChannel> requests = new ArrayList<>();
    for (InputChannel channel : asked) {
      long number = connection.nextNumber();
      channel.asked(connection, number);
      channels.put(number, channel);
      Source source = channel.source();
      requests.add(
          new Message.GateChannel(
              number, source.taskManagerId(), source.host(), source.port(), source.mapAttemptIds()));
    }
    openGates.add(gate);
    connection.send(
        new Message.OpenGate(gate, shuffleId, startSubpartition, endSubpartition, credit, requests));
    connection.sendNow();
  }

  /** Gives a channel up; another one is to take its place. */
  void retire(InputChannel channel) throws IOException {
    channel.release();
    if (channel.isOn(connection) && !channel.isReceived()) {
      // Of no effect on one that has failed there already.
      connection.send(new Message.CancelPartitionRequest(channel.number()));
    }
  }

  /**
   * Waits until {@code done}.
   *
   * @param wakeAtNanos returns then at the latest, as {@link System#nanoTime}
   */
  void await(BooleanSupplier done, long wakeAtNanos) throws IOException {
    connection.awaitUntil(() -> done.getAsBoolean() || gateError != null, "map outputs", wakeAtNanos);
    if (gateError != null) {
      throw new ClientException.Remote(connection.endpoint().toString(), gateError);
    }
  }

  /** Whether the TaskManager answers within the deadline of a connect, though it may have no data. */
  boolean isAlive() {
    try {
      ponged = false;
      connection.send(new Message.Ping(System.nanoTime()));
      connection.awaitSoon(() -> ponged, "a sign of life");
      return true;
    } catch (IOException e) {
      return false;
    }
  }

  /** Nanoseconds waited so far; not to be asked once the connection was given back. */
  long waitedNanos() {
    return connection.waitedNanos() - waitedBefore;
  }

  long localBytes() {
    return localBytes;
  }

  long remoteBytes() {
    return remoteBytes;
  }

  /** Closes the gates; says whether the connection is clean and can serve another task. */
  boolean close() {
    try {
      for (long gate : openGates) {
        connection.send(new Message.CloseGate(gate));
      }
      connection.awaitEnd(openGates::isEmpty, "the end of a gate");
      return gateError == null;
    } catch (IOException e) {
      // The connection is given up, which closes the gates too.
      return false;
    }
  }

  private InputChannel channel(long number) throws ClientException.Protocol {
    InputChannel channel = channels.get(number);
    if (channel == null) {
      throw new ClientException.Protocol(
          ErrorCode.UNKNOWN_CHANNEL, "message for channel " + number + ", which was never asked for", null);
    }
    return channel;
  }

  @Override
  public void onMessage(Message message) throws IOException {
    if (message instanceof Message.GateClosed closed) {
      openGates.remove(closed.gate());
    } else if (message instanceof Message.ErrorResponse response) {
      if (openGates.remove(response.channel())) {
        gateError = response;
      } else {
        channel(response.channel()).fail(response);
      }
    } else if (message instanceof Message.Pong) {
      ponged = true;
    } else if (!(message instanceof Message.GateOpened)
        && !(message instanceof Message.BacklogAnnouncement)) {
      throw new ClientException.Protocol(
          ErrorCode.UNEXPECTED_MESSAGE, "on a consumer connection: " + message, null);
    }
  }

  @Override
  public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
    InputChannel channel = channel(response.channel());
    if (channel.isLocal()) {
      localBytes += payload.length;
    } else {
      remoteBytes += payload.length;
    }
    channel.add(response, payload);
  }

  @Override
  public void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException {
    channel(response.channel()).end(response, event);
  }
}
