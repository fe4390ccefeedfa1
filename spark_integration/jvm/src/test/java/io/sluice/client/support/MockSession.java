package io.sluice.client.support;

import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Predicate;
import java.util.zip.CRC32C;

/** One connection of the mock daemon. */
public final class MockSession {
    private final MockDaemon daemon;
    private final DataInputStream in;
    private final OutputStream out;
    private final Map<Long, Long> credits = new HashMap<>();
    private boolean muted;
    private List<TreeMap<Integer, byte[]>> output;
    private long attempt;
    private Message.BeginRegion region;
    private ByteArrayOutputStream regionBytes;
    private String area;
    private Message.SharedRegion shared;

    MockSession(MockDaemon daemon, DataInputStream in, OutputStream out) {
        this.daemon = daemon;
        this.in = in;
        this.out = out;
    }

    public void send(Message message, byte[] payload) throws IOException {
        if (muted) {
            return;
        }
        writeFrame(TestFrames.frame(message, payload));
    }

    private void writeFrame(byte[] frame) throws IOException {
        if (daemon.mode == MockDaemon.Mode.BYTE_BY_BYTE) {
            for (byte b : frame) {
                out.write(b);
                out.flush();
            }
        } else {
            out.write(frame);
        }
    }

    public void send(Message message) throws IOException {
        send(message, new byte[0]);
    }

    private void sendAll(List<Message> messages) throws IOException {
        for (Message message : messages) {
            send(message);
        }
    }

    public void run() throws IOException {
        while (true) {
            TestFrames.Received frame = TestFrames.read(in);
            daemon.received.add(frame.message());
            Predicate<Message> cutHere = daemon.cut.get();
            if (cutHere != null
                    && cutHere.test(frame.message())
                    && daemon.cut.compareAndSet(cutHere, null)) {
                if (daemon.tellsBeforeCut) {
                    sendAll(daemon.newsAtPing);
                }
                muted = true;
                if (daemon.cutAfter) {
                    handle(frame.message(), frame.payload());
                }
                throw new IOException("cut as asked");
            }
            handle(frame.message(), frame.payload());
        }
    }

    private void handle(Message message, byte[] payload) throws IOException {
        if (message instanceof Message.Hello hello) {
            Message.HelloAck ack =
                    new Message.HelloAck(
                            1,
                            daemon.id,
                            MockDaemon.SEGMENT,
                            0,
                            hello.features() & daemon.features,
                            daemon.endpoint().isUnix() ? "127.0.0.1" : daemon.endpoint().host(),
                            daemon.advertisedPort < 0
                                    ? daemon.endpoint().port()
                                    : daemon.advertisedPort,
                            daemon.instanceId,
                            daemon.process,
                            daemon.processes);
            ByteArrayOutputStream together = new ByteArrayOutputStream();
            together.write(TestFrames.frame(ack, new byte[0]));
            for (Message news : daemon.newsAtConnect) {
                together.write(TestFrames.frame(news, new byte[0]));
            }
            writeFrame(together.toByteArray());
            send(new Message.Ping(-1L));
        } else if (message instanceof Message.ErrorResponse refusal) {
            daemon.told.add(refusal);
        } else if (message instanceof Message.OpenPartition open && daemon.refusesOutputs != null) {
            fail(open.partition(), daemon.refusesOutputs, null);
        } else if (message instanceof Message.OpenPartition open) {
            output = new ArrayList<>();
            attempt = open.mapAttemptId();
            send(new Message.PartitionOpened(open.partition()));
        } else if (message instanceof Message.BeginRegion begin) {
            beginRegion(begin);
        } else if (message instanceof Message.ResumePartition resume) {
            resume(resume);
        } else if (message instanceof Message.AttachRegionArea attach) {
            Message.RegionAreaAttached answer = daemon.areas.attach(attach);
            area = answer.token();
            send(answer);
        } else if (message instanceof Message.SharedRegion where) {
            shared = where;
        } else if (message instanceof Message.SecureRegion secure) {
            takeShared();
            daemon.secured.put(attempt, List.copyOf(output));
            send(new Message.RegionSecured(secure.partition(), secure.region()));
        } else if (message instanceof Message.RegionData data) {
            regionData(data, payload);
        } else if (message instanceof Message.FinishPartition finish) {
            finish(finish);
        } else if (message instanceof Message.AbortPartition abort) {
            output = null;
            send(new Message.PartitionAborted(abort.partition()));
        } else if (message instanceof Message.OpenGate open) {
            open(open);
        } else if (message instanceof Message.CloseGate close) {
            send(new Message.GateClosed(close.gate()));
        } else if (message instanceof Message.Ping ping && daemon.answersPings) {
            List<Message> news = daemon.news;
            sendAll(news);
            sendAll(daemon.newsAtPing);
            daemon.newsAtPing = List.of();
            send(new Message.Pong(ping.nonce()));
            sendAll(news);
        } else if (message instanceof Message.KnownTaskManager
                || message instanceof Message.MoveNoted) {
            daemon.told.add(message);
        } else if (message instanceof Message.CheckOutputs check) {
            daemon.told.add(message);
            List<Long> lost =
                    check.mapAttemptIds().stream().filter(daemon.lacks::contains).toList();
            if (!lost.isEmpty()) {
                send(new Message.OutputsLost(check.shuffleId(), lost));
            }
            send(new Message.OutputsChecked(check.check()));
        } else if (message instanceof Message.ReleaseShuffle release) {
            daemon.told.add(message);
            send(new Message.ShuffleReleased(release.shuffleId(), 0));
        } else if (message instanceof Message.ReleaseAttempts release) {
            daemon.told.add(message);
            send(new Message.ShuffleReleased(release.shuffleId(), 0));
        } else if (message instanceof Message.AddCredit add) {
            credits.merge(add.channel(), add.credit(), Long::sum);
        }
    }

    private void resume(Message.ResumePartition resume) throws IOException {
        attempt = resume.mapAttemptId();
        List<TreeMap<Integer, byte[]>> found = daemon.outputs.get(attempt);
        boolean committed = found != null;
        if (!committed) {
            if (daemon.forgetsSecured) {
                daemon.secured.clear();
            }
            found = daemon.secured.getOrDefault(attempt, List.of());
            output = new ArrayList<>(found);
        }
        send(
                new Message.PartitionResumed(
                        resume.partition(), found.size(), bytes(found), committed));
    }

    private static long bytes(List<? extends Map<Integer, byte[]>> regions) {
        return regions.stream()
                .flatMap(slices -> slices.values().stream())
                .mapToLong(slice -> slice.length)
                .sum();
    }

    private int payloadBytes() {
        return daemon.mode == MockDaemon.Mode.LARGE_PAYLOADS
                ? MockDaemon.LARGE_PAYLOAD
                : MockDaemon.SEGMENT;
    }

    private void beginRegion(Message.BeginRegion begin) throws IOException {
        if (daemon.refusal != null && begin.region() >= daemon.refusedFrom) {
            fail(begin.partition(), daemon.refusal, null);
            return;
        }
        region = begin;
        regionBytes = new ByteArrayOutputStream();
        if (daemon.withholdsCredit) {
            daemon.creditsWithheld.release();
            return;
        }
        long length = 0;
        for (long one : begin.lengths()) {
            length += one;
        }
        if (daemon.mode == MockDaemon.Mode.LARGE_PAYLOADS) {
            send(
                    new Message.RegionOpened(
                            begin.partition(), begin.region(), MockDaemon.LARGE_PAYLOAD));
        }
        long needed = (length + payloadBytes() - 1) / payloadBytes();
        while (needed > 0) {
            long grant = Math.min(needed, 3);
            send(new Message.AddCredit(begin.partition(), grant));
            needed -= grant;
        }
    }

    private void regionData(Message.RegionData data, byte[] payload) throws IOException {
        if (daemon.mode == MockDaemon.Mode.SLOW_READER) {
            LockSupport.parkNanos(50_000);
        }
        if (data.offset() != regionBytes.size()) {
            fail(data.partition(), ErrorCode.REGION_MISMATCH, null);
            return;
        }
        regionBytes.write(payload);
        daemon.largestPayload = Math.max(daemon.largestPayload, payload.length);
        long length = 0;
        for (long one : region.lengths()) {
            length += one;
        }
        if (regionBytes.size() == length) {
            endRegion(regionBytes.toByteArray());
        }
    }

    private void endRegion(byte[] bytes) throws IOException {
        CRC32C crc = new CRC32C();
        crc.update(bytes);
        if (crc.getValue() != region.crc32c()) {
            fail(region.partition(), ErrorCode.CHECKSUM_MISMATCH, null);
        }
        TreeMap<Integer, byte[]> slices = new TreeMap<>();
        int offset = 0;
        for (int i = 0; i < region.lengths().length; i++) {
            int n = (int) region.lengths()[i];
            if (n > 0) {
                slices.put(
                        (int) region.firstSubpartition() + i,
                        Arrays.copyOfRange(bytes, offset, offset + n));
            }
            offset += n;
        }
        output.add(slices);
        daemon.regionsReceived.release();
    }

    /**
     * Takes a shared region as late as a TaskManager may, so that a change made too early shows up
     * as damage.
     */
    private void takeShared() throws IOException {
        if (shared != null) {
            region =
                    new Message.BeginRegion(
                            shared.partition(),
                            shared.region(),
                            shared.firstSubpartition(),
                            shared.lengths(),
                            shared.crc32c());
            int length = (int) Arrays.stream(region.lengths()).sum();
            endRegion(daemon.areas.read(area, shared.areaOffset(), length));
            shared = null;
        }
    }

    private void finish(Message.FinishPartition finish) throws IOException {
        takeShared();
        if (output == null) {
            return; // It was refused.
        }
        if (bytes(output) != finish.totalBytes() || output.size() != finish.regions()) {
            fail(finish.partition(), ErrorCode.REGION_MISMATCH, null);
            return;
        }
        if (daemon.outputs.putIfAbsent(attempt, output) != null) {
            fail(finish.partition(), ErrorCode.DUPLICATE_MAP_OUTPUT, null);
            return;
        }
        send(new Message.PartitionFinished(finish.partition()));
    }

    private void open(Message.OpenGate open) throws IOException {
        send(new Message.GateOpened(open.gate()));
        for (Message.GateChannel channel : open.channels()) {
            credits.put(channel.channel(), open.initialCredit());
            serve(open, channel);
        }
    }

    private void serve(Message.OpenGate open, Message.GateChannel channel) throws IOException {
        if (daemon.mode == MockDaemon.Mode.SILENT
                || daemon.silentSources.contains(channel.taskManagerId())) {
            return;
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        List<Integer> ends = new ArrayList<>();
        for (long id : channel.mapAttemptIds()) {
            List<TreeMap<Integer, byte[]>> done = daemon.outputs.get(id);
            if (done == null || daemon.mode == MockDaemon.Mode.PARTITION_NOT_FOUND) {
                fail(channel.channel(), ErrorCode.PARTITION_NOT_FOUND, id);
                return;
            }
            for (TreeMap<Integer, byte[]> slices : done) {
                for (byte[] bytes :
                        slices.subMap((int) open.startSubpartition(), (int) open.endSubpartition())
                                .values()) {
                    all.write(bytes);
                }
            }
            ends.add(all.size());
        }
        byte[] bytes = all.toByteArray();
        MockDaemon.Mode now = daemon.mode;
        int length = now == MockDaemon.Mode.OMIT_LAST_BLOCK ? bytes.length - 129 : bytes.length;
        long sequence = 0;
        for (int offset = 0; offset < length; ) {
            waitForCredit(channel.channel());
            ErrorCode fault = daemon.fault.at(channel, sequence);
            if (fault != null && fault != ErrorCode.CHECKSUM_MISMATCH) {
                fail(channel, fault, ends, offset);
                return;
            }
            int n = Math.min(payloadBytes(), length - offset);
            byte[] payload = Arrays.copyOfRange(bytes, offset, offset + n);
            if (fault != null) {
                payload[n - 1] ^= 1;
            }
            if (sequence == daemon.modeFromBuffer && goesWrong(now)) {
                if (now == MockDaemon.Mode.DISCONNECT_IN_DATA) {
                    byte[] frame =
                            TestFrames.frame(
                                    new Message.BufferResponse(channel.channel(), sequence, 0, 0),
                                    payload);
                    out.write(frame, 0, frame.length / 2);
                    throw new IOException("disconnect as asked");
                } else if (now == MockDaemon.Mode.CONNECTION_LOST) {
                    fail(channel.channel(), ErrorCode.CONNECTION_LOST, null);
                    return;
                } else if (now == MockDaemon.Mode.SKIP_A_BUFFER) {
                    sequence++;
                } else {
                    payload[n - 1] ^= 1;
                }
            }
            send(
                    new Message.BufferResponse(channel.channel(), sequence++, 0, Message.DATA),
                    payload);
            offset += n;
        }
        ErrorCode fault = daemon.fault.at(channel, sequence);
        if (fault != null && fault != ErrorCode.CHECKSUM_MISMATCH) {
            fail(channel, fault, ends, length);
            return;
        }
        long total = now == MockDaemon.Mode.WRONG_TOTALS ? length + 1 : length;
        byte[] event = TestEvents.endOfPartition(total, sequence);
        send(new Message.BufferResponse(channel.channel(), sequence, 0, Message.EVENT), event);
    }

    /** Returns whether something goes wrong at this buffer, and counts it. */
    private boolean goesWrong(MockDaemon.Mode now) {
        return switch (now) {
            case FLIP_A_BIT, DISCONNECT_IN_DATA, CONNECTION_LOST, SKIP_A_BUFFER ->
                    daemon.modeTimes.getAndUpdate(left -> Math.max(0, left - 1)) > 0;
            default -> false;
        };
    }

    private void waitForCredit(long channel) throws IOException {
        while (credits.get(channel) == 0) {
            TestFrames.Received frame = TestFrames.read(in);
            daemon.received.add(frame.message());
            handle(frame.message(), frame.payload());
        }
        credits.merge(channel, -1L, Long::sum);
    }

    private void fail(Message.GateChannel channel, ErrorCode code, List<Integer> ends, int offset)
            throws IOException {
        int index = 0;
        while (index < ends.size() - 1 && ends.get(index) <= offset) {
            index++;
        }
        Long attempt = daemon.faultNamesOutput ? channel.mapAttemptIds()[index] : null;
        send(
                new Message.ErrorResponse(
                        channel.channel(),
                        code.number(),
                        1,
                        false,
                        "as asked",
                        daemon.faultValue,
                        "",
                        attempt));
    }

    private void fail(long channel, ErrorCode code, Long attempt) throws IOException {
        send(
                new Message.ErrorResponse(
                        channel, code.number(), 1, false, "as asked", "", "", attempt));
    }
}
