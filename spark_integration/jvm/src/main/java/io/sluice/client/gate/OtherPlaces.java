package io.sluice.client.gate;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.failover.PlaceDirectory;
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

/** Finds other TaskManagers for what a failed source of a gate has not delivered. */
final class OtherPlaces {
    private static final Logger LOG = LoggerFactory.getLogger(OtherPlaces.class);

    private final ConnectionSource connections;
    private final long shuffleId;
    private final int credit;

    /**
     * @param connections gives the directory of places
     * @param credit buffers that each new channel may have under way
     */
    OtherPlaces(ConnectionSource connections, long shuffleId, int credit) {
        this.connections = connections;
        this.shuffleId = shuffleId;
        this.credit = credit;
    }

    /**
     * Finds other places of the data that a failure left unread; what is in no other place stays
     * where it is, if the failure allows it.
     *
     * @return channels with all that is unread; empty if the failure is not helped in this way
     */
    List<InputChannel> of(InputChannel channel, SourceFailure failure) throws IOException {
        SourceProgress progress = channel.progress();
        SourceRetries retries = progress.retries();
        if (!failure.mayBeElsewhere() || !retries.mayMove() || !retries.asksAfter(failure)) {
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
        List<PlaceDirectory.Place> places =
                new ArrayList<>(connections.places().places(shuffleId, ids, avoided));
        PlaceDirectory.Place told = failure.movedTo();
        boolean allFail = failure.mapAttemptId() == null || failure.isUnreachable();
        boolean found = allFail;
        for (int i = 0; i < ids.length && !allFail; i++) {
            if (ids[i] == failure.mapAttemptId()) {
                if (places.get(i) == null
                        && told != null
                        && !avoided.contains(told.taskManagerId())) {
                    places.set(i, told);
                }
                found = places.get(i) != null;
            } else if (failure.isDamage()) {
                places.set(i, null);
            }
        }
        if (!found || places.stream().allMatch(Objects::isNull)) {
            return List.of();
        }
        long now = System.nanoTime();
        long stayUntil = now;
        if (allFail && places.contains(null)) {
            OptionalLong at = retries.nextAttempt(failure);
            if (at.isEmpty()) {
                return List.of();
            }
            stayUntil = at.getAsLong();
        }
        if (failure.isUnreachable()) {
            connections.absences().add(progress.source().taskManagerId());
        }
        return divide(rest, places, now, stayUntil);
    }

    /**
     * Returns the channels with which reading begins. What another gate has found out of reach just
     * before is read in other places at once, as far as there are some.
     */
    List<InputChannel> first(SourceProgress progress, long now) throws IOException {
        Source source = progress.source();
        String taskManagerId = source.taskManagerId();
        if (!connections.absences().has(taskManagerId)) {
            return List.of(new InputChannel(progress, credit, now));
        }
        List<PlaceDirectory.Place> places =
                connections
                        .places()
                        .places(shuffleId, source.mapAttemptIds(), Set.of(taskManagerId));
        if (places.stream().allMatch(Objects::isNull)) {
            connections.absences().remove(taskManagerId);
            return List.of(new InputChannel(progress, credit, now));
        }
        return divide(List.of(progress), places, now, now);
    }

    /**
     * Divides parts of a source by place.
     *
     * @param places for each map output of the parts; null stays where it is
     * @param now when to request what goes elsewhere
     * @param stayUntil when to request what stays
     */
    private List<InputChannel> divide(
            List<SourceProgress> parts,
            List<PlaceDirectory.Place> places,
            long now,
            long stayUntil) {
        List<InputChannel> divided = new ArrayList<>();
        int next = 0;
        for (SourceProgress part : parts) {
            int count = part.source().mapAttemptIds().length;
            for (SourceProgress one : part.at(places.subList(next, next + count))) {
                boolean stays = one.retries() == part.retries();
                divided.add(new InputChannel(one, credit, stays ? stayUntil : now));
            }
            next += count;
        }
        connections.failedOver();
        LOG.info(
                "{} of {} map outputs that TaskManager {} had are read at {} from now on",
                places.stream().filter(Objects::nonNull).count(),
                places.size(),
                parts.get(0).source().taskManagerId(),
                places.stream()
                        .filter(Objects::nonNull)
                        .map(place -> place.taskManagerId())
                        .distinct()
                        .collect(Collectors.joining(", ")));
        return divided;
    }
}
