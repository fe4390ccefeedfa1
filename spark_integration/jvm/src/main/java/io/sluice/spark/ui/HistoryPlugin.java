package io.sluice.spark.ui;

import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.status.AppHistoryServerPlugin;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.ui.SparkUI;
import scala.collection.immutable.$colon$colon;
import scala.collection.immutable.List;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** The tab "Sluice" in the history server, which finds this class by {@code META-INF/services}. */
public final class HistoryPlugin extends HistoryListeners implements AppHistoryServerPlugin {
    @Override
    @SuppressWarnings("unchecked")
    public Seq<SparkListener> createListeners(SparkConf conf, ElementTrackingStore store) {
        return new $colon$colon<>(
                new HistoryListener(store), (List<SparkListener>) (List<?>) Nil$.MODULE$);
    }

    /** Adds the tab to the UI of an application that used Sluice. */
    @Override
    public void setupUI(SparkUI ui) {
        StatusTab.attachRecorded(ui);
    }
}
