// SPDX-License-Identifier: Apache-2.0

import java.lang.reflect.Field;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.ServiceThread;

/**
 * A stock broker whose RocksDB timeline rolls every few seconds, and not once an hour: its service is
 * woken, as at its hour, and does what it always does. The first argument says how often, in seconds;
 * the others are the broker's.
 */
public class RollingBroker {
    public static void main(String[] args) throws Exception {
        String[] rest = new String[args.length - 1];
        System.arraycopy(args, 1, rest, 0, rest.length);
        BrokerController broker = BrokerStartup.start(BrokerStartup.createBrokerController(rest));
        Object timeline = broker.getTimerMessageRocksDBStore().getTimeline();
        Field service = timeline.getClass().getDeclaredField("timelineRollService");
        service.setAccessible(true);
        ServiceThread rolling = (ServiceThread) service.get(timeline);
        while (true) {
            TimeUnit.SECONDS.sleep(Long.parseLong(args[0]));
            rolling.wakeup();
        }
    }
}
