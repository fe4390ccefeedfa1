package io.sluice.spark.ui;

import io.sluice.spark.driver.DriverRuntime;
import java.util.function.Supplier;
import org.apache.spark.SparkContext;
import org.apache.spark.status.AppStatusStore;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The tab "Sluice" in the UI of a running application and in the history server. */
public final class StatusTab extends SparkUITab {
    private static final Logger LOG = LoggerFactory.getLogger(StatusTab.class);

    private StatusTab(SparkUI ui, Supplier<ApplicationStatus> status)
            throws ReflectiveOperationException {
        super(ui, "sluice");
        attachPage(new StatusPage(this, status));
    }

    /** Returns the tab's label; its path is {@code sluice}. */
    @Override
    public String name() {
        return "Sluice";
    }

    /** Adds the tab to a running application if it has a UI. */
    public static void attach(SparkContext context, DriverRuntime runtime) {
        if (context.ui().isDefined()) {
            SparkUI ui = context.ui().get();
            AppStatusStore spark = ui.store();
            attach(ui, () -> LiveStatus.of(runtime, spark.store()));
        }
    }

    /** Adds the tab in the history server if the application used Sluice. */
    static void attachRecorded(SparkUI ui) {
        AppStatusStore spark = ui.store();
        if (RecordedStatus.exists(spark.store())) {
            attach(ui, () -> RecordedStatus.of(spark));
        }
    }

    /** An unsupported UI does not fail the application, nor the history server. */
    private static void attach(SparkUI ui, Supplier<ApplicationStatus> status) {
        try {
            ui.attachTab(new StatusTab(ui, status));
        } catch (ReflectiveOperationException | LinkageError e) {
            LOG.warn(
                    "The Sluice tab cannot be added to the UI of Spark {}",
                    org.apache.spark.package$.MODULE$.SPARK_VERSION(),
                    e);
        }
    }
}
