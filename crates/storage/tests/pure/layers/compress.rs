//! What a compressed volume says of itself and refuses.

use super::*;

fn compressed(device: &QueuedDevice, blocks: usize) -> Arc<CompressLayer> {
    let settings = CompressSettings {
        codec: CompressionCodec::Zstd(3),
        chunk_bytes: 16 << 10,
        capacity_bytes: Some((blocks * BLOCK) as u64),
    };
    Arc::new(CompressLayer::open(device.as_device(), settings, WorkerThreads::inline()).unwrap())
}

#[test]
fn full_device_refuses_until_discard() {
    let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
    let compress = compressed(&device, 400);
    let volume: Arc<dyn BlockDevice> = compress.clone();
    let space = compress.figures().space_bytes as usize / BLOCK;
    let mut written = 0;
    let full = loop {
        match write(&volume, written, noise(4, written)) {
            Ok(()) => written += 4,
            Err(error) => break error,
        }
    };
    assert_eq!(full, DeviceError::NoSpace);
    assert_eq!(written as usize, space / 4 * 4, "nothing is lost to bookkeeping");
    // What was there before is untouched, and compressible data fits no better into nothing.
    assert!(read(&volume, written - 4, 4) == noise(4, written - 4));
    assert!(read(&volume, written, 4).iter().all(|byte| *byte == 0));
    // Writing over takes new space first.
    assert_eq!(write(&volume, 0, noise(4, 77)), Err(DeviceError::NoSpace));
    assert!(read(&volume, 0, 4) == noise(4, 0));
    volume.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: 8 * BLOCK as u64 }).unwrap();
    write(&volume, 300, noise(4, 5)).unwrap();
    write(&volume, 8, vec![0; 4 * BLOCK]).unwrap();
    write(&volume, 8, noise(4, 6)).unwrap();
    volume.execute(DeviceRequest::Flush).unwrap();
    drop((volume, compress));
    let again: Arc<dyn BlockDevice> = compressed(&QueuedDevice::new(device.image()), 400);
    assert!(read(&again, 300, 4) == noise(4, 5) && read(&again, 8, 4) == noise(4, 6));
    assert!(read(&again, 0, 8).iter().all(|byte| *byte == 0));
}

#[test]
fn figures_say_what_is_stored() {
    let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
    let compress = compressed(&device, 400);
    let volume: Arc<dyn BlockDevice> = compress.clone();
    write(&volume, 0, noise(4, 1)).unwrap();
    write(&volume, 4, vec![7; 8 * BLOCK]).unwrap();
    write(&volume, 12, vec![0; 8 * BLOCK]).unwrap();
    let figures = compress.figures();
    assert_eq!(figures.logical_bytes, 12 * BLOCK as u64);
    assert_eq!(figures.used_bytes, 6 * BLOCK as u64, "four units for noise, one for each chunk of sevens");
    assert!((16384..17000).contains(&figures.stored_bytes), "{figures:?}");
}

#[test]
fn other_codec_or_chunk_size_is_refused() {
    let device = QueuedDevice::new(vec![0; 4 * DEVICE_BLOCKS * BLOCK]);
    let open = |codec, chunk_bytes| {
        let settings = CompressSettings { codec, chunk_bytes, capacity_bytes: None };
        CompressLayer::open(device.as_device(), settings, WorkerThreads::inline()).map(|_| ())
    };
    open(CompressionCodec::Zstd(3), 16 << 10).unwrap();
    open(CompressionCodec::Zstd(5), 16 << 10).expect("levels read each other's");
    for (codec, chunk_bytes, name) in
        [(CompressionCodec::Lz4, 16, "lz4/16"), (CompressionCodec::Zstd(3), 32, "zstd/32")]
    {
        let problem = open(codec, chunk_bytes << 10).unwrap_err().to_string();
        assert!(problem.contains("'zstd/16'") && problem.contains(name), "{problem}");
    }
}

#[test]
fn another_layers_device_is_refused_by_name() {
    let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
    compressed(&device, 60);
    let cache = CacheLayer::open(
        device.as_device(),
        QueuedDevice::new(vec![0; 64 * BLOCK]).as_device(),
        CacheSettings::new(CacheMode::WriteBack),
    );
    let problem = cache.map(|_| ()).unwrap_err().to_string();
    assert!(problem.contains("a journal of 'zstd/16', not of 'wb-cache'"), "{problem}");
}
