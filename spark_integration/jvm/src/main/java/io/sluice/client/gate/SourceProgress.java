package io.sluice.client.gate;

import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ErrorCode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Tracks which map outputs of a source have been read, and checks that their blocks are complete
 * and in order.
 */
final class SourceProgress {
    static final int ALL_READ = Integer.MAX_VALUE;

    private static final int ENDED = -1;
    private static final int NO_STREAM = -1;

    private final Source source;
    private final int startSubpartition;
    private final int endSubpartition;
    private final SourceRetries retries;

    /** The TaskManager that had the data at first: its parts are read in map order. */
    private final String firstTaskManagerId;

    private final Map<Long, Integer> attempts = new HashMap<>();
    private final boolean[] attemptDone;
    private int attemptsDone;
    private int firstUnread;

    // State of the map attempt that is being read.
    private int attempt = -1;
    private int attemptBegun;
    private int attemptEnded;
    private long attemptBytes;
    private int streamOf = NO_STREAM;

    /** For each partition of the range: blocks so far, or {@link #ENDED}. */
    private int[] blocksSeen = new int[0];

    SourceProgress(
            Source source, int startSubpartition, int endSubpartition, SourceRetries retries) {
        this(source, startSubpartition, endSubpartition, retries, source.taskManagerId());
    }

    private SourceProgress(
            Source source,
            int startSubpartition,
            int endSubpartition,
            SourceRetries retries,
            String firstTaskManagerId) {
        this.source = source;
        this.firstTaskManagerId = firstTaskManagerId;
        this.startSubpartition = startSubpartition;
        this.endSubpartition = endSubpartition;
        this.retries = retries;
        long[] ids = source.mapAttemptIds();
        this.attemptDone = new boolean[ids.length];
        for (int i = 0; i < ids.length; i++) {
            attempts.put(ids[i], i);
        }
    }

    Source source() {
        return source;
    }

    SourceRetries retries() {
        return retries;
    }

    String firstTaskManagerId() {
        return firstTaskManagerId;
    }

    /** Returns the bytes read of the current map attempt, which a new request repeats. */
    long attemptBytes() {
        return attemptBytes;
    }

    /** Returns the current map attempt, or null between two. */
    Long attemptId() {
        return attempt < 0 ? null : source.mapAttemptIds()[attempt];
    }

    /** Checks the header of the next block. */
    void check(Block block) throws SourceFailure {
        Integer index = attempts.get(block.mapAttemptId);
        if (attempt >= 0 && (index == null || index != attempt)) {
            // Blame the attempt that is incomplete; the unexpected header cannot be trusted.
            finishAttempt();
        }
        if (index == null) {
            throw failure(
                    null,
                    ErrorCode.STORAGE_CORRUPT,
                    "a block of map attempt " + block.mapAttemptId + " was not requested",
                    null);
        }
        if (index != attempt) {
            if (attemptDone[index]) {
                throw corrupt(block, "its blocks are not contiguous");
            }
            beginAttempt(index);
        }
        if (block.subpartition < startSubpartition || block.subpartition >= endSubpartition) {
            throw corrupt(block, "partition " + block.subpartition + " was not requested");
        }
        checkOrder(block);
    }

    /** Checks that the blocks of a partition are numbered without a gap over all its streams. */
    private void checkOrder(Block block) throws SourceFailure {
        if (streamOf != NO_STREAM && (block.isFirst() || block.subpartition != streamOf)) {
            throw corrupt(block, "the stream of partition " + streamOf + " has no last block");
        }
        if (streamOf == NO_STREAM && !block.isFirst()) {
            throw corrupt(
                    block, "a stream of partition " + block.subpartition + " has no first block");
        }
        int seen = blocksSeen[block.subpartition - startSubpartition];
        if (seen == ENDED) {
            throw corrupt(block, "partition " + block.subpartition + " continues after its end");
        }
        if (block.number != (seen & 0xFFFF)) {
            throw corrupt(
                    block,
                    String.format(
                            "received block %d of partition %d, expected block %d",
                            block.number, block.subpartition, seen & 0xFFFF));
        }
    }

    /** Records a verified block. */
    void read(Block block) {
        int at = block.subpartition - startSubpartition;
        if (blocksSeen[at]++ == 0) {
            attemptBegun++;
        }
        if (block.isEnd()) {
            blocksSeen[at] = ENDED;
            attemptEnded++;
        }
        streamOf = block.isLast() ? NO_STREAM : block.subpartition;
        attemptBytes += Blocks.HEADER_BYTES + block.length;
        retries.progress();
    }

    private void beginAttempt(int index) {
        attempt = index;
        attemptBegun = 0;
        attemptEnded = 0;
        attemptBytes = 0;
        int range = endSubpartition - startSubpartition;
        if (blocksSeen.length == range) {
            Arrays.fill(blocksSeen, 0);
        } else {
            blocksSeen = new int[range];
        }
    }

    /** Returns the map index of the next map output; {@link #ALL_READ} after the last one. */
    int nextMapIndex() {
        if (attempt >= 0 && !isAttemptComplete()) {
            return source.mapIndexes()[attempt];
        }
        while (firstUnread < attemptDone.length
                && (attemptDone[firstUnread] || firstUnread == attempt)) {
            firstUnread++;
        }
        return firstUnread < attemptDone.length ? source.mapIndexes()[firstUnread] : ALL_READ;
    }

    private boolean isAttemptComplete() {
        return attemptEnded == source.streams()[attempt] && attemptBegun == attemptEnded;
    }

    private void finishAttempt() throws SourceFailure {
        if (attempt < 0) {
            return;
        }
        int wanted = source.streams()[attempt];
        if (streamOf != NO_STREAM) {
            throw corrupt(
                    attemptId(), "the stream of partition " + streamOf + " has no last block");
        }
        if (attemptBegun != wanted) {
            throw corrupt(
                    attemptId(),
                    String.format(
                            "it has %d of the %d partitions that Spark knows of",
                            attemptBegun, wanted));
        }
        if (attemptEnded != wanted) {
            throw corrupt(
                    attemptId(),
                    String.format(
                            "%d of its %d partitions have no last block",
                            wanted - attemptEnded, wanted));
        }
        endAttempt();
    }

    private void endAttempt() {
        attemptDone[attempt] = true;
        attemptsDone++;
        attempt = -1;
        attemptBytes = 0;
    }

    /** Checks at the end that nothing is missing. */
    void complete() throws SourceFailure {
        finishAttempt();
        if (attemptsDone != attemptDone.length) {
            for (int i = 0; i < attemptDone.length; i++) {
                if (!attemptDone[i]) {
                    throw corrupt(source.mapAttemptIds()[i], "none of its blocks arrived");
                }
            }
        }
    }

    /**
     * Returns the unread parts. A partly read map attempt comes first and alone: its bytes arrive
     * again in the same order, and the reader skips those it has.
     */
    List<SourceProgress> rest() {
        if (attempt >= 0 && isAttemptComplete()) {
            endAttempt();
        }
        List<SourceProgress> parts = new ArrayList<>();
        if (attempt >= 0) {
            SourceProgress begun = part(new int[] {attempt}, null);
            begun.attempt = 0;
            begun.continueFrom(this);
            parts.add(begun);
        }
        int[] unread = new int[attemptDone.length];
        int count = 0;
        for (int i = 0; i < attemptDone.length; i++) {
            if (!attemptDone[i] && i != attempt) {
                unread[count++] = i;
            }
        }
        if (count > 0) {
            parts.add(part(Arrays.copyOf(unread, count), null));
        }
        return parts;
    }

    private void continueFrom(SourceProgress other) {
        attemptBegun = other.attemptBegun;
        attemptEnded = other.attemptEnded;
        attemptBytes = other.attemptBytes;
        streamOf = other.streamOf;
        blocksSeen = other.blocksSeen;
    }

    /**
     * Divides a part of {@link #rest} by TaskManager.
     *
     * @param replicas one for each map output; null keeps its TaskManager
     */
    List<SourceProgress> at(List<TaskManagerAddress> replicas) {
        Map<TaskManagerAddress, List<Integer>> byTaskManager = new LinkedHashMap<>();
        for (int i = 0; i < replicas.size(); i++) {
            byTaskManager.computeIfAbsent(replicas.get(i), id -> new ArrayList<>()).add(i);
        }
        List<SourceProgress> parts = new ArrayList<>();
        byTaskManager.forEach(
                (replica, indexes) -> {
                    SourceProgress part =
                            part(indexes.stream().mapToInt(Integer::intValue).toArray(), replica);
                    if (attempt >= 0) {
                        // A partly read map output is alone.
                        part.attempt = attempt;
                        part.continueFrom(this);
                    }
                    parts.add(part);
                });
        return parts;
    }

    /**
     * @param replica null for the same TaskManager
     */
    private SourceProgress part(int[] indexes, TaskManagerAddress replica) {
        Source part =
                new Source(
                        replica == null ? source.taskManagerId() : replica.taskManagerId(),
                        replica == null ? source.host() : replica.host(),
                        replica == null ? source.port() : replica.port(),
                        Arrays.stream(indexes).mapToLong(i -> source.mapAttemptIds()[i]).toArray(),
                        Arrays.stream(indexes).map(i -> source.streams()[i]).toArray(),
                        Arrays.stream(indexes).map(i -> source.mapIndexes()[i]).toArray());
        return new SourceProgress(
                part,
                startSubpartition,
                endSubpartition,
                replica == null ? retries : retries.forReplica(source.taskManagerId()),
                firstTaskManagerId);
    }

    // ---- failures

    SourceFailure corrupt(Block block, String what) {
        return corrupt(block.mapAttemptId, what);
    }

    private SourceFailure corrupt(long mapAttemptId, String what) {
        return failure(mapAttemptId, ErrorCode.CHECKSUM_MISMATCH, what, null);
    }

    SourceFailure failure(Long mapAttemptId, ErrorCode code, String what, Throwable cause) {
        return new SourceFailure(source, "", mapAttemptId, code, what, cause);
    }
}
