package io.sluice.spark.ui;

import io.sluice.spark.driver.DriverRuntime;
import org.apache.spark.SparkContext;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The tab "Sluice" in the UI of a running application. The history server does not have it. */
public final class StatusTab extends SparkUITab {
    private static final Logger LOG = LoggerFactory.getLogger(StatusTab.class);

    private StatusTab(SparkUI ui, DriverRuntime runtime) throws ReflectiveOperationException {
        super(ui, "sluice");
        attachPage(new StatusPage(this, () -> ApplicationStatus.of(runtime)));
    }

    /** Returns the tab's label; its path is {@code sluice}. */
    @Override
    public String name() {
        return "Sluice";
    }

    /**
     * Adds the tab if the application has a UI. An unsupported UI does not fail the application.
     */
    public static void attach(SparkContext context, DriverRuntime runtime) {
        if (context.ui().isEmpty()) {
            return;
        }
        try {
            SparkUI ui = context.ui().get();
            ui.attachTab(new StatusTab(ui, runtime));
        } catch (ReflectiveOperationException | LinkageError e) {
            LOG.warn("The Sluice tab cannot be added to the UI of Spark {}", context.version(), e);
        }
    }
}
