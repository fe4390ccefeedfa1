package io.sluice.spark.ui;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.apache.spark.status.AppStatusStore;
import org.apache.spark.util.kvstore.KVStore;
import org.apache.spark.util.kvstore.KVStoreIterator;
import scala.Tuple2;
import scala.collection.Iterator;

/** Reads the recorded state of an application in the history server. */
final class RecordedStatus {
    private RecordedStatus() {}

    /** Returns whether the event log of the application has events of Sluice. */
    static boolean exists(KVStore store) {
        try {
            return store.count(SluiceShuffleEvent.class) + store.count(SluiceStatusEvent.class) > 0;
        } catch (Exception e) {
            throw failed(e);
        }
    }

    static ApplicationStatus of(AppStatusStore spark) {
        KVStore store = spark.store();
        SluiceStatusEvent last = last(store);
        return new ApplicationStatus(
                last,
                shuffles(store),
                StageRow.read(store, last.creditWaitNanos()),
                ApplicationStatus.settings(settings(spark)::get));
    }

    private static SluiceStatusEvent last(KVStore store) {
        try {
            return store.read(SluiceStatusEvent.class, SluiceStatusEvent.KEY);
        } catch (NoSuchElementException e) {
            return SluiceStatusEvent.NONE;
        } catch (Exception e) {
            throw failed(e);
        }
    }

    private static List<SluiceShuffleEvent> shuffles(KVStore store) {
        List<SluiceShuffleEvent> newest = new ArrayList<>();
        try (KVStoreIterator<SluiceShuffleEvent> shuffles =
                store.view(SluiceShuffleEvent.class).reverse().closeableIterator()) {
            while (shuffles.hasNext()) {
                newest.add(shuffles.next());
            }
        } catch (Exception e) {
            throw failed(e);
        }
        return newest;
    }

    /** Returns the settings of the application; Spark has hidden the secret ones in the log. */
    private static Map<String, String> settings(AppStatusStore spark) {
        Map<String, String> settings = new HashMap<>();
        Iterator<Tuple2<String, String>> all = spark.environmentInfo().sparkProperties().iterator();
        while (all.hasNext()) {
            Tuple2<String, String> setting = all.next();
            settings.put(setting._1(), setting._2());
        }
        return settings;
    }

    private static IllegalStateException failed(Exception e) {
        return new IllegalStateException("the events of Sluice cannot be read from the store", e);
    }
}
