//! Lists the network devices with their drivers and RX queues.
use wirelane_netdev::{Device, Result};

fn main() -> Result<()> {
    for device in Device::list()? {
        let driver = device.driver.as_deref().unwrap_or("-");
        let queues: Vec<&str> = device.rx_queues.iter().map(|queue| queue.virtual_device.as_str()).collect();
        println!("{}: driver {driver}, MTU {}, RX queues {}", device.name, device.mtu, queues.join(" "));
    }
    Ok(())
}
