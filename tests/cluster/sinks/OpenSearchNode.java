// Starts OpenSearch in this process, without its distribution: java -cp 'JARS/*' OpenSearchNode.java HOME PORT TRANSPORT_PORT

import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;

public class OpenSearchNode {
    static class Plain extends Node {
        Plain(Environment environment) {
            super(environment, List.of(org.opensearch.transport.Netty4Plugin.class), false);
        }
    }

    public static void main(String[] given) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", given[0])
            .put("cluster.name", "tests")
            .put("node.name", "n1")
            .put("network.host", "127.0.0.1")
            .put("http.port", given[1])
            .put("transport.port", given[2])
            .put("discovery.type", "single-node")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new Plain(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "n1")).start();
        while (System.in.read() >= 0) { // its end: the tests have gone
        }
        Runtime.getRuntime().halt(0);
    }
}
