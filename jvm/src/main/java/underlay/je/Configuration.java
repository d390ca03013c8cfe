package underlay.je;

import java.util.Map;

import com.sleepycat.je.DatabaseConfig;
import com.sleepycat.je.Durability;
import com.sleepycat.je.EnvironmentConfig;

/** JE's configuration out of a driver's properties. */
final class Configuration {
    static final String DATABASE = "records";
    private static final String PARAMETER = "je.";
    /** Parameters of replication are set elsewhere. */
    static final String REPLICATION_PARAMETER = "je.rep.";

    private Configuration() {
    }

    static EnvironmentConfig environment(Map<String, String> properties) {
        EnvironmentConfig config = new EnvironmentConfig();
        config.setAllowCreate(true);
        config.setTransactional(true);
        config.setDurability(Durability.parse(required(properties, "durability")));
        properties.forEach((name, value) -> {
            if (name.startsWith(PARAMETER) && !name.startsWith(REPLICATION_PARAMETER)) {
                config.setConfigParam(name, value);
            }
        });
        // JE's own log and statistics would be written to the storage under test.
        config.setConfigParam(EnvironmentConfig.FILE_LOGGING_LEVEL, "OFF");
        config.setConfigParam(EnvironmentConfig.CONSOLE_LOGGING_LEVEL, "WARNING");
        config.setConfigParam(EnvironmentConfig.STATS_COLLECT, "false");
        // It reads the whole log at midnight, in the middle of a measurement.
        config.setConfigParam(EnvironmentConfig.ENV_RUN_VERIFIER, "false");
        return config;
    }

    static DatabaseConfig database() {
        return new DatabaseConfig().setAllowCreate(true).setTransactional(true);
    }

    static String required(Map<String, String> properties, String name) {
        String value = properties.get(name);
        if (value == null || value.isEmpty()) {
            throw new IllegalArgumentException("the property '" + name + "' is missing");
        }
        return value;
    }
}
