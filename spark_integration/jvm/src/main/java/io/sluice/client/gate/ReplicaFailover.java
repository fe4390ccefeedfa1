package io.sluice.client.gate;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Finds other TaskManagers for the unread data of a failed source. */
final class ReplicaFailover {
    private static final Logger LOG = LoggerFactory.getLogger(ReplicaFailover.class);

    private final ConnectionSource connections;
    private final long shuffleId;
    private final int credit;

    /**
     * @param credit messages in flight to each new channel
     */
    ReplicaFailover(ConnectionSource connections, long shuffleId, int credit) {
        this.connections = connections;
        this.shuffleId = shuffleId;
        this.credit = credit;
    }

    /**
     * Returns channels for all unread data of a failed channel. Data without a replica stays at its
     * TaskManager if the failure is transient.
     *
     * @return empty if replicas cannot help
     */
    List<InputChannel> failOver(InputChannel channel, SourceFailure failure) throws IOException {
        SourceProgress progress = channel.progress();
        SourceRetries retries = progress.retries();
        if (!failure.mayHaveReplica()
                || !retries.mayTryAnother()
                || !retries.looksForReplicasAfter(failure)) {
            return List.of();
        }
        List<SourceProgress> rest = progress.rest();
        long[] ids =
                rest.stream()
                        .flatMapToLong(part -> Arrays.stream(part.source().mapAttemptIds()))
                        .toArray();
        if (ids.length == 0) {
            return List.of();
        }
        Set<String> avoided = retries.avoided(progress.source().taskManagerId());
        ReplicaLocator.Replicas located =
                connections.replicas().locate(shuffleId, ids, avoided, progress.source().address());
        List<TaskManagerAddress> replicas = new ArrayList<>(located.addresses());
        if (failure.isConnectFailure()
                && located.gone().contains(progress.source().taskManagerId())) {
            retries.gone();
        }
        TaskManagerAddress movedTo = failure.movedTo();
        boolean allFail = failure.mapAttemptId() == null || failure.isUnreachable();
        boolean found = allFail;
        for (int i = 0; i < ids.length && !allFail; i++) {
            if (ids[i] == failure.mapAttemptId()) {
                if (replicas.get(i) == null
                        && movedTo != null
                        && !avoided.contains(movedTo.taskManagerId())) {
                    replicas.set(i, movedTo);
                }
                found = replicas.get(i) != null;
            } else if (failure.isDamage()) {
                replicas.set(i, null);
            }
        }
        if (!found || replicas.stream().allMatch(Objects::isNull)) {
            return List.of();
        }
        long now = System.nanoTime();
        long stayUntil = now;
        if (allFail && replicas.contains(null)) {
            OptionalLong at = retries.nextAttempt(failure);
            if (at.isEmpty()) {
                return List.of();
            }
            stayUntil = at.getAsLong();
        }
        if (failure.isUnreachable()) {
            connections.unreachable().add(progress.source().taskManagerId());
        }
        return divide(rest, replicas, now, stayUntil);
    }

    /**
     * Returns the first channels of a source. If another gate found its TaskManager unreachable
     * recently, replicas are read from the start.
     */
    List<InputChannel> first(SourceProgress progress, long now) throws IOException {
        Source source = progress.source();
        String taskManagerId = source.taskManagerId();
        if (!connections.unreachable().has(taskManagerId)) {
            return List.of(new InputChannel(progress, credit, now));
        }
        List<TaskManagerAddress> replicas =
                connections
                        .replicas()
                        .locate(
                                shuffleId,
                                source.mapAttemptIds(),
                                Set.of(taskManagerId),
                                source.address())
                        .addresses();
        if (replicas.stream().allMatch(Objects::isNull)) {
            connections.unreachable().remove(taskManagerId);
            return List.of(new InputChannel(progress, credit, now));
        }
        return divide(List.of(progress), replicas, now, now);
    }

    /**
     * Divides parts of a source by TaskManager.
     *
     * @param replicas one for each map output of the parts; null keeps its TaskManager
     * @param now when to request replicas
     * @param stayUntil when to request what keeps its TaskManager
     */
    private List<InputChannel> divide(
            List<SourceProgress> parts,
            List<TaskManagerAddress> replicas,
            long now,
            long stayUntil) {
        List<InputChannel> divided = new ArrayList<>();
        int next = 0;
        for (SourceProgress part : parts) {
            int count = part.source().mapAttemptIds().length;
            for (SourceProgress one : part.at(replicas.subList(next, next + count))) {
                boolean stays = one.retries() == part.retries();
                divided.add(new InputChannel(one, credit, stays ? stayUntil : now));
            }
            next += count;
        }
        connections.failedOver();
        LOG.info(
                "{} of {} map outputs of TaskManager {} are now read from replicas at {}",
                replicas.stream().filter(Objects::nonNull).count(),
                replicas.size(),
                parts.get(0).source().taskManagerId(),
                replicas.stream()
                        .filter(Objects::nonNull)
                        .map(TaskManagerAddress::taskManagerId)
                        .distinct()
                        .collect(Collectors.joining(", ")));
        return divided;
    }
}
