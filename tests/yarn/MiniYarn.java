import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * Runs a YARN cluster in this process until SIGTERM, which also ends its containers.
 *
 * <p>Arguments: the directory for its files, the directory for {@code yarn-site.xml}, and the number
 * of NodeManagers. When the file is written it prints {@code ready}.
 */
public final class MiniYarn {
    private static final Map<String, String> SETTINGS =
            Map.ofEntries(
                    Map.entry("yarn.nodemanager.resource.memory-mb", "8192"),
                    Map.entry("yarn.nodemanager.resource.cpu-vcores", "8"),
                    Map.entry("yarn.scheduler.minimum-allocation-mb", "256"),
                    Map.entry("yarn.nodemanager.vmem-check-enabled", "false"),
                    Map.entry("yarn.nodemanager.pmem-check-enabled", "false"),
                    Map.entry("yarn.nodemanager.disk-health-checker.enable", "false"),
                    // Keeps the logs of containers, to examine a failure.
                    Map.entry("yarn.nodemanager.delete.debug-delay-sec", "600"),
                    // JAVA_TOOL_OPTIONS has the hosts file of the JVM.
                    Map.entry(
                            "yarn.nodemanager.env-whitelist",
                            "JAVA_HOME,JAVA_TOOL_OPTIONS,SLUICE_NODE,SLUICE_ZONE"),
                    Map.entry("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0"),
                    Map.entry("yarn.scheduler.capacity.root.queues", "default"),
                    Map.entry("yarn.scheduler.capacity.root.default.capacity", "100"),
                    Map.entry("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", "200"),
                    Map.entry("yarn.resourcemanager.bind-host", "127.0.0.1"),
                    Map.entry("yarn.nodemanager.bind-host", "127.0.0.1"));

    private MiniYarn() {}

    /** Starts the cluster; it ends with the process. */
    public static void main(String[] arguments) throws Exception {
        System.setProperty("test.build.data", arguments[0]);
        YarnConfiguration configuration = new YarnConfiguration();
        SETTINGS.forEach(configuration::set);
        int nodeManagers = Integer.parseInt(arguments[2]);
        try {
            MiniYARNCluster cluster = new MiniYARNCluster("sluice", nodeManagers, 1, 1);
            cluster.init(configuration);
            Runtime.getRuntime().addShutdownHook(new Thread(cluster::stop));
            cluster.start();
            try (OutputStream out = Files.newOutputStream(Path.of(arguments[1], "yarn-site.xml"))) {
                cluster.getConfig().writeXml(out);
            }
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // threads of the cluster would keep the process
        }
        System.out.println("ready");
    }
}
