package io.sluice.spark.ui;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.sluice.spark.registration.NewShuffle;
import io.sluice.spark.registration.ShuffleRegistrar;
import io.sluice.spark.registration.ShuffleTable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.junit.jupiter.api.Test;

/** Checks which events reach the event log, and how often. */
class StatusRecorderTest {
    private final ShuffleTable table = new ShuffleTable();
    private final List<SparkListenerEvent> posted = new ArrayList<>();
    private long nanos;
    private long bytesWritten;

    private final StatusRecorder recorder =
            new StatusRecorder(table, this::status, posted::add, () -> nanos);

    private SluiceStatusEvent status() {
        return new SluiceStatusEvent(
                List.of(), table.registered(), Map.of("bytesWritten", bytesWritten), Map.of());
    }

    private void register(int shuffleId) {
        NewShuffle shuffle =
                new NewShuffle(
                        shuffleId,
                        3,
                        5,
                        key -> Optional.empty(),
                        Optional.empty(),
                        OptionalLong::empty);
        assertEquals(true, new ShuffleRegistrar(List.of(), table).useSluice(shuffle));
    }

    private void mapStageEnds(int shuffleId, int stageId) {
        table.writtenBy(shuffleId, stageId);
        table.written(shuffleId, 10, 100);
        bytesWritten += 100;
        recorder.written(shuffleId);
        recorder.stageEnded();
    }

    private static SluiceShuffleEvent written(int shuffleId, int stageId, boolean released) {
        return new SluiceShuffleEvent(shuffleId, 3, 5, "", "", stageId, 10, 100, released);
    }

    @Test
    void aShuffleIsPostedWhenItsMapStageEnds() {
        register(0);
        assertEquals(List.of(), posted);
        mapStageEnds(0, 7);
        assertEquals(List.of(written(0, 7, false), status()), posted);
    }

    @Test
    void theStatusIsPostedEveryTenSeconds() {
        register(0);
        register(1);
        register(2);
        mapStageEnds(0, 0);
        posted.clear();
        nanos += TimeUnit.SECONDS.toNanos(10) - 1;
        mapStageEnds(1, 1);
        assertEquals(List.of(written(1, 1, false)), posted);
        posted.clear();
        nanos++;
        mapStageEnds(2, 2);
        assertEquals(List.of(written(2, 2, false), status()), posted);
    }

    @Test
    void changesArePostedAtTheEndOnce() {
        register(0);
        register(1);
        mapStageEnds(0, 0);
        mapStageEnds(1, 1);
        posted.clear();
        table.released(1);
        recorder.applicationEnds();
        assertEquals(List.of(written(1, 1, true), status()), posted);
        recorder.applicationEnds();
        assertEquals(2, posted.size());
    }

    @Test
    void aShuffleThatNoStageWroteIsPostedAtTheEnd() {
        register(4);
        recorder.applicationEnds();
        assertEquals(
                List.of(new SluiceShuffleEvent(4, 3, 5, "", "", -1, 0, 0, false), status()),
                posted);
    }
}
